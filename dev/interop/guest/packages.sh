# Debian packages that the guest and its virtual machine need. Sourced by build.sh and ci.sh.

# Prints a line for each required command or file: its name or path, and the package that has it.
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

# Debian has some commands only in root's PATH.
PATH="$PATH:/usr/sbin:/sbin"

# Prints the newest kernel whose headers are installed, such as `6.1.0-56-amd64`. Prints nothing if
# there is none.
kernel_release() {
    local dir newest=
    for dir in /usr/src/linux-headers-*-amd64; do
        [ -e "$dir/Module.symvers" ] || continue
        dir=${dir#/usr/src/linux-headers-}
        newest=$(printf '%s\n%s\n' "$newest" "$dir" | sort -V | tail -1)
    done
    printf '%s' "$newest"
}

# Prints `6.1` for `6.1.0-56-amd64`.
kernel_series() { printf '%s' "$1" | cut -d. -f1,2; }

# Prints the missing packages, one per line.
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
        fi
    } | sort -u
}
