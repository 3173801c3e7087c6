"""Which environment variables change what a name runs, or where its code comes from (SEC-8).

The trust question marks them. Each runtime, package manager and shell that servers are started with has some.
"""

from __future__ import annotations

from typing import Final

__all__ = ["steers"]

_NAMES: Final = frozenset(
    [
        *("PATH", "IFS", "ENV", "BASH_ENV", "SHELL", "SHELLOPTS", "BASHOPTS", "PS4", "PROMPT_COMMAND", "ZDOTDIR"),
        *(
            "CDPATH",
            "HOME",
            "TMPDIR",
            "XDG_CONFIG_HOME",
            "XDG_CONFIG_DIRS",
            "XDG_DATA_DIRS",
        ),  # programs and their settings
        *("NODE_OPTIONS", "NODE_PATH", "NODE_EXTRA_CA_CERTS", "NODE_TLS_REJECT_UNAUTHORIZED", "COREPACK_NPM_REGISTRY"),
        *(
            "VIRTUAL_ENV",
            "PERLLIB",
            "CLASSPATH",
            "MAVEN_OPTS",
            "GRADLE_OPTS",
            "_JAVA_OPTIONS",
            "PHPRC",
            "PHP_INI_SCAN_DIR",
        ),
        *("GOENV", "GOFLAGS", "GOINSECURE", "GONOSUMCHECK", "GONOSUMDB", "GOPATH", "GOPRIVATE", "GOPROXY", "GOROOT"),
        *("GOSUMDB", "GOTOOLCHAIN", "RUSTC", "RUSTC_WRAPPER", "RUSTFLAGS", "MAKEFLAGS", "CC", "CXX"),
        *("DOCKER_HOST", "DOCKER_CONFIG", "DOCKER_CONTEXT", "CONTAINER_HOST", "KUBECONFIG"),
        *("EDITOR", "VISUAL", "PAGER", "MANPAGER", "BROWSER", "SSH_ASKPASS", "SUDO_ASKPASS"),
        *("GCONV_PATH", "GETCONF_DIR", "LOCPATH", "NLSPATH", "HOSTALIASES", "OPENSSL_CONF", "OPENSSL_ENGINES"),
        *(
            "OPENSSL_MODULES",
            "SSL_CERT_FILE",
            "SSL_CERT_DIR",
            "CURL_CA_BUNDLE",
            "REQUESTS_CA_BUNDLE",
            "CURL_HOME",
            "WGETRC",
        ),
    ]
)

_LEADS: Final = (
    *("LD_", "DYLD_", "GLIBC_", "MALLOC_", "BASH_FUNC_", "PYTHON", "PIP_", "PIPX_", "UV_", "POETRY_", "PDM_", "CONDA_"),
    *("NPM_CONFIG_", "PNPM_", "YARN_", "BUN_", "DENO_", "TS_NODE_", "PERL5", "PERL_", "RUBY", "GEM_", "BUNDLE_"),
    *("JAVA_", "JDK_", "DOTNET_", "CORECLR_", "COR_", "LUA_", "GIT_", "CARGO_", "HOLDFAST_"),
)


def steers(variable: str) -> bool:
    """Whether a variable changes what a usual program runs. Case does not count: npm reads lower case too."""
    upper = variable.upper()
    return upper in _NAMES or upper.startswith(_LEADS)
