"""Codes about the way to a server: the network, and TLS."""

from __future__ import annotations

from holdfast.doctor.codes.code import Code

__all__ = ["NETWORK", "TLS"]

NETWORK = (
    Code(
        "HF-DNS-NAME",
        "error",
        "The host name does not exist",
        "It is misspelt, or known only inside a network (a VPN, a cluster) that this machine is not in.",
        "Correct `url`, or join that network.",
    ),
    Code(
        "HF-DNS-SERVER",
        "error",
        "The host name could not be looked up",
        "The name server does not answer: this says nothing about the name itself.",
        "Look at this machine's network and DNS settings, then try again.",
    ),
    Code(
        "HF-REFUSED",
        "error",
        "Nothing listens at the address",
        "The machine answered, and refused: the server is not running, or listens on another port.",
        "Start it, or correct the port in `url`.",
    ),
    Code(
        "HF-FILTERED",
        "error",
        "The port does not answer at all",
        "Neither a yes nor a no came back: a firewall drops the packets, or the machine is off.",
        "Open the port, connect the VPN, or correct the host in `url`.",
    ),
    Code(
        "HF-UNREACHABLE",
        "error",
        "There is no route to the host",
        "The network says that it cannot be reached: no VPN, no IPv6, no link.",
        "Look at this machine's network.",
    ),
    Code(
        "HF-PROXY-DOWN",
        "error",
        "The proxy on the way cannot be reached",
        "A proxy variable is set, and nothing answers at the address that it names.",
        "Correct or unset the variable, or except this host with NO_PROXY.",
    ),
    Code(
        "HF-PROXY-LOGIN",
        "error",
        "The proxy on the way asks for credentials",
        "It answered 407.",
        "Put user and password into the proxy variable, or except this host with NO_PROXY.",
    ),
    Code(
        "HF-PROXY-REFUSED",
        "error",
        "The proxy on the way refused to connect",
        "It does not let this host or port pass, or cannot reach it itself.",
        "Except this host with NO_PROXY, or ask whoever runs the proxy.",
    ),
    Code(
        "HF-CUT",
        "error",
        "The connection was cut before an answer came",
        "The server crashed on the request, or something between closed the connection.",
        "Look at the server's log, and try again.",
    ),
    Code(
        "HF-SILENT",
        "error",
        "No answer came in time",
        "The server accepted the connection, or was started, and said nothing.",
        "Give it longer with --timeout; if that helps, raise holdfast.load.attemptTimeout. Else look at its log.",
    ),
)

TLS = (
    Code(
        "HF-TLS-NAME",
        "error",
        "The certificate is for another name",
        "`url` says a host name, or an address, that the certificate does not.",
        "Use a name that the certificate has.",
    ),
    Code(
        "HF-TLS-EXPIRED",
        "error",
        "The certificate has expired",
        "Whoever runs the server did not renew it.",
        "They must. Nothing on this machine mends it.",
    ),
    Code(
        "HF-TLS-EARLY",
        "error",
        "The certificate is not valid yet",
        "It was made for a later time.",
        "Wait, or have it replaced.",
    ),
    Code(
        "HF-TLS-CLOCK",
        "error",
        "This machine's clock is wrong",
        "The server's clock is far from ours, and by its time the certificate is good.",
        "Set the clock.",
    ),
    Code(
        "HF-TLS-AUTHORITY",
        "error",
        "The certificate is signed by an authority that is not trusted here",
        "A company's own authority, a self-signed certificate, or a proxy that opens TLS.",
        "If you trust that authority, export SSL_CERT_FILE with a file that holds its certificate.",
    ),
    Code(
        "HF-TLS-UNVERIFIED",
        "error",
        "The certificate does not verify",
        "For the reason that is named.",
        "Whoever runs the server must replace it.",
    ),
    Code(
        "HF-TLS-PLAIN",
        "error",
        "https where http is meant",
        "The port speaks plain HTTP.",
        "Write http:// in `url`.",
    ),
    Code(
        "HF-TLS-HANDSHAKE",
        "error",
        "The TLS handshake failed",
        "The two sides share no version or cipher, the server wants a client certificate, or it is no TLS at all.",
        "Look at the server's TLS settings.",
    ),
    Code(
        "HF-HTTPS-MEANT",
        "error",
        "http where https is meant",
        "The port speaks TLS, or sends every request to https.",
        "Write https:// in `url`.",
    ),
    Code(
        "HF-PLAIN-CREDENTIALS",
        "error",
        "Credentials would travel unencrypted",
        "The definition has headers, and `url` is plain http to another machine. Nothing was sent.",
        "Use https; or, if the network is trusted, set allowPlainHttp.",
    ),
)
