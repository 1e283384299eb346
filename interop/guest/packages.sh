# What the guest and its machine need, as Debian packages. Sourced by build.sh and ../../ci.sh.

# A command, or a file, and the package it comes from.
needed_commands() {
    cat <<'LIST'
qemu-system-x86_64 qemu-system-x86
busybox busybox-static
cpio cpio
modprobe kmod
depmod kmod
gcc-12 gcc-12
make make
ip iproute2
rdma iproute2
setpriv util-linux
unshare util-linux
xz xz-utils
strip binutils
ibv_devinfo ibverbs-utils
rping rdmacm-utils
ib_write_bw perftest
LIST
}

needed_files() {
    cat <<'LIST'
/usr/share/seabios/bios-256k.bin seabios
/usr/lib/x86_64-linux-gnu/libibverbs/libsiw-rdmav34.so ibverbs-providers
/usr/include/infiniband/verbs.h libibverbs-dev
/usr/include/rdma/rdma_cma.h librdmacm-dev
LIST
}

# Commands that Debian puts where only root looks.
PATH="$PATH:/usr/sbin:/sbin"

# The newest kernel whose headers are here: `6.1.0-56-amd64`. Nothing when there are none.
kernel_release() {
    local dir newest=
    for dir in /usr/src/linux-headers-*-amd64; do
        [ -e "$dir/Module.symvers" ] || continue
        dir=${dir#/usr/src/linux-headers-}
        newest=$(printf '%s\n%s\n' "$newest" "$dir" | sort -V | tail -1)
    done
    printf '%s' "$newest"
}

# `6.1` of `6.1.0-56-amd64`.
kernel_series() { printf '%s' "$1" | cut -d. -f1,2; }

# The packages that are missing, one a line.
missing_packages() {
    local what package release
    {
        while read -r what package; do
            command -v "$what" >/dev/null 2>&1 || echo "$package"
        done < <(needed_commands)
        while read -r what package; do
            [ -e "$what" ] || echo "$package"
        done < <(needed_files)
        release=$(kernel_release)
        if [ -z "$release" ]; then
            echo linux-headers-amd64
            echo linux-source
        elif [ ! -e "/usr/src/linux-source-$(kernel_series "$release").tar.xz" ]; then
            echo "linux-source-$(kernel_series "$release")"
        fi
    } | sort -u
}
