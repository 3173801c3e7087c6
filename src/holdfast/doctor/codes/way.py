"""Codes about the network and TLS."""

from __future__ import annotations

from holdfast.doctor.codes.code import Code

__all__ = ["NETWORK", "TLS"]

NETWORK = (
    Code(
        "HF-DNS-NAME",
        "error",
        "The host name does not exist",
        "It is misspelt, or it exists only inside a network (a VPN, a cluster) that this machine is not in.",
        "Correct `url`, or connect to that network.",
    ),
    Code(
        "HF-DNS-SERVER",
        "error",
        "The host name could not be looked up",
        "The name server does not answer. The name itself may be right.",
        "Check this machine's network and DNS settings, then try again.",
    ),
    Code(
        "HF-REFUSED",
        "error",
        "Nothing listens at the address",
        "The machine refused the connection: the server is not running, or listens on another port.",
        "Start it, or correct the port in `url`.",
    ),
    Code(
        "HF-FILTERED",
        "error",
        "The port does not answer at all",
        "No reply came: a firewall drops the packets, or the machine is off.",
        "Open the port, connect the VPN, or correct the host in `url`.",
    ),
    Code(
        "HF-UNREACHABLE",
        "error",
        "There is no route to the host",
        "The network reports that the host cannot be reached: no VPN, no IPv6 or no link.",
        "Check this machine's network.",
    ),
    Code(
        "HF-PROXY-DOWN",
        "error",
        "The proxy cannot be reached",
        "A proxy variable is set, and nothing answers at its address.",
        "Correct or unset the variable, or add this host to NO_PROXY.",
    ),
    Code(
        "HF-PROXY-LOGIN",
        "error",
        "The proxy asks for credentials",
        "It answered 407.",
        "Put user and password into the proxy variable, or add this host to NO_PROXY.",
    ),
    Code(
        "HF-PROXY-REFUSED",
        "error",
        "The proxy refused to connect",
        "It does not allow this host or port, or cannot reach it.",
        "Add this host to NO_PROXY, or ask the proxy's operator.",
    ),
    Code(
        "HF-CUT",
        "error",
        "The connection was closed before an answer came",
        "The server crashed on the request, or a device in between closed the connection.",
        "Look at the server's log, and try again.",
    ),
    Code(
        "HF-SILENT",
        "error",
        "No answer came in time",
        "The server accepted the connection, or was started, and sent no answer.",
        "Allow more time with --timeout; if that helps, raise holdfast.load.attemptTimeout. Otherwise look at its log.",
    ),
)

TLS = (
    Code(
        "HF-TLS-NAME",
        "error",
        "The certificate is for another name",
        "The certificate does not contain the host name or address in `url`.",
        "Use a name in the certificate.",
    ),
    Code(
        "HF-TLS-EXPIRED",
        "error",
        "The certificate has expired",
        "The server's operator did not renew it.",
        "Ask the server's operator to renew it. No change on this machine helps.",
    ),
    Code(
        "HF-TLS-EARLY",
        "error",
        "The certificate is not valid yet",
        "Its validity begins in the future.",
        "Wait, or ask the server's operator to replace it.",
    ),
    Code(
        "HF-TLS-CLOCK",
        "error",
        "This machine's clock is wrong",
        "The server's clock differs from this machine's, and by its time the certificate is valid.",
        "Set the clock.",
    ),
    Code(
        "HF-TLS-AUTHORITY",
        "error",
        "The certificate is signed by an authority that this machine does not trust",
        "The cause is a company's own authority, a self-signed certificate, or a proxy that intercepts TLS.",
        "If you trust that authority, export SSL_CERT_FILE with the path of its certificate.",
    ),
    Code(
        "HF-TLS-UNVERIFIED",
        "error",
        "The certificate does not verify",
        "The message names the reason.",
        "Ask the server's operator to replace it.",
    ),
    Code(
        "HF-TLS-PLAIN",
        "error",
        "`url` says https, and the server speaks http",
        "The port speaks plain HTTP.",
        "Write http:// in `url`.",
    ),
    Code(
        "HF-TLS-HANDSHAKE",
        "error",
        "The TLS handshake failed",
        "Both sides share no version or cipher, the server needs a client certificate, or the port is not a TLS port.",
        "Check the server's TLS settings.",
    ),
    Code(
        "HF-HTTPS-MEANT",
        "error",
        "`url` says http, and the server speaks https",
        "The port speaks TLS, or redirects every request to https.",
        "Write https:// in `url`.",
    ),
    Code(
        "HF-PLAIN-CREDENTIALS",
        "error",
        "Credentials would be sent unencrypted",
        "The definition has headers, and `url` is plain http to another machine. No request was sent.",
        "Use https; or, if the network is trusted, set allowPlainHttp.",
    ),
)
