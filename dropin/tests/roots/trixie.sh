# Debian 13, as .ci/roots.sh makes it. The root contains a copy of this file. If the two differ, the
# root is made anew; a new REVISION makes the same packages anew.
REVISION=2
TITLE="Debian 13"
SUITE=trixie
# Debian packages of the programs that the tests run, and of what compiles tests/c.
PACKAGES="ibverbs-utils rdmacm-utils perftest ucx-utils openmpi-bin libopenmpi-dev mpich libmpich-dev
    gcc libc6-dev libibverbs-dev librdmacm-dev"
# Files without which these programs run. UCX's module for ROCm, which needs the last four, then is
# not loaded; no test has a GPU.
WITHOUT="/usr/share/doc/* /usr/share/man/* /usr/share/locale/* /usr/share/info/* /usr/lib/*-linux-gnu/*.a
    /usr/libexec/gcc/*/cc1plus /usr/libexec/gcc/*/f951 /usr/libexec/gcc/*/lto1
    /usr/lib/*/libLLVM* /usr/lib/*/libamd_comgr* /usr/lib/*/libamdhip64* /usr/lib/*/libz3*"
# Exceptions from WITHOUT: what gcc links.
BUT="/usr/lib/*/libgcc*.a /usr/lib/*/libc_nonshared.a /usr/lib/*/libpthread.a /usr/lib/*/libdl.a"
