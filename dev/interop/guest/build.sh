#!/usr/bin/env bash
# Builds the guest: a Linux kernel with the siw driver, and an initramfs with the rdma-core tools,
# perftest, the textbook program and the agent. Prints the directory with `vmlinuz`, `initrd`,
# `versions` and `textbook` (the same program, to run on our side). All other output goes to stderr.
#
#      build.sh              prints the directory; builds it if it is not in the cache
#      build.sh --missing    prints the missing Debian packages, one per line
#
# Exit codes: 0 done, 1 failed, 3 packages are missing (their names are on stderr), 4 Debian's
# archive no longer has this kernel.
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
agent=$here/../agent
textbook=$here/../../../dropin/tests/c/textbook.c
# shellcheck source=packages.sh
. "$here/packages.sh"

note() { printf 'guest: %s\n' "$*" >&2; }
fail() { note "$*"; exit 1; }
outdated() { note "$*: run 'apt-get update', and install the newest linux-headers-amd64"; exit 4; }

if [ "${1:-}" = --missing ]; then
    missing_packages
    exit 0
fi
missing=$(missing_packages | tr '\n' ' ')
if [ -n "$missing" ]; then
    note "these Debian packages are missing: $missing"
    exit 3
fi

version_of() { dpkg-query -W -f '${Version}' "$1" 2>/dev/null || echo unknown; }

release=$(kernel_release)
series=$(kernel_series "$release")
kernel_version=$(version_of "linux-headers-$release")
libs=/usr/lib/x86_64-linux-gnu
# The name of the cache entry depends on all inputs of the initramfs.
inputs() {
    echo "$release $kernel_version"
    for package in rdma-core rdmacm-utils ibverbs-utils ibverbs-providers libibverbs1 librdmacm1 \
        perftest busybox-static iproute2 libc6; do
        echo "$package $(version_of "$package")"
    done
    (cd "$here" && sha256sum build.sh init)
    (cd "$agent" && sha256sum Makefile ./*.c ./*.h)
    sha256sum <"$textbook"
}
hash=$(inputs | sha256sum | cut -c1-16)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/uwarp/guest
entry=$cache/$release-$hash
kernel=$cache/kernel-$release-$kernel_version
mkdir -p "$cache"

if [ -e "$entry/versions" ]; then
    touch "$entry" "$kernel" 2>/dev/null || true
    echo "$entry"
    exit 0
fi

# Only one builder runs at a time. It builds in a temporary directory and renames the result.
exec 9>"$cache/.lock"
flock 9
work=$(mktemp -d "$cache/.build-XXXXXX")
trap 'rm -rf "$work"' EXIT
trap 'exit 130' INT TERM
for left in "$cache"/.build-*; do
    [ "$left" = "$work" ] || rm -rf "$left"
done

MODULES="virtio_pci virtio_net virtio_console ib_uverbs rdma_ucm libcrc32c crc32c_intel ipv6"

# Unpacks a package of the kernel's version into a directory. It is not installed, because apt would
# choose the newest version, and Debian's archive may have a newer source than binaries.
unpack() { # PACKAGE DIRECTORY
    note "fetching $1 $kernel_version"
    (cd "$work" && apt-get download -qq "$1=$kernel_version" 2>&1 | grep -v '^W: Download is performed unsandboxed' >&2 || true)
    ls "$work/$1"_*.deb >/dev/null 2>&1 ||
        outdated "Debian's archive does not hand out $1 $kernel_version"
    dpkg -x "$work/$1"_*.deb "$2"
}

# Builds vmlinuz, the modules in the order of insmod, and siw.ko. These files depend only on the
# kernel.
build_kernel() {
    local out=$work/kernel image=$work/image source=$work/source siw
    mkdir -p "$out/modules" "$image" "$source"
    unpack "linux-image-$release-unsigned" "$image"
    unpack "linux-source-$series" "$source"
    cp "$image/boot/vmlinuz-$release" "$out/vmlinuz"
    depmod -b "$image" "$release"

    note "building siw.ko for $release"
    tar xf "$source/usr/src/linux-source-$series.tar.xz" -C "$work" "linux-source-$series/drivers/infiniband/sw/siw"
    siw=$work/linux-source-$series/drivers/infiniband/sw/siw
    make -s -C "/usr/src/linux-headers-$release" M="$siw" CONFIG_RDMA_SIW=m CC=gcc-12 modules >&2 ||
        fail "siw does not build for $release"

    local module line path number=100
    for module in $MODULES ib_core iw_cm; do
        { modprobe -d "$image" -S "$release" --show-depends "$module" 2>/dev/null || true; } |
            sed -n 's/^insmod \([^ ]*\).*/\1/p'
    done | awk '!seen[$0]++' >"$work/order"
    while read -r path; do
        cp "$path" "$out/modules/$number-$(basename "$path")"
        number=$((number + 1))
    done <"$work/order"
    for module in virtio_net virtio_console ib_uverbs rdma_ucm; do
        ls "$out/modules" | grep -q -- "-$module.ko" || fail "the kernel $release has no module $module"
    done
    cp "$siw/siw.ko" "$out/modules/$number-siw.ko"
    strip --strip-debug "$out"/modules/*.ko
    # The kernel is stored outside the entry, because it depends only on the version of its package.
    rm -rf "$kernel"
    mv "$out" "$kernel"
}

# Installs a program and the libraries it is linked with.
install_program() {
    local path lib
    path=$(command -v "$1")
    mkdir -p "$root/bin"
    cp -L "$path" "$root/bin/$(basename "$path")"
    install_libraries "$path"
}

install_libraries() {
    local lib
    ldd "$1" | grep -o '/[^ ]*' | while read -r lib; do
        [ -e "$root$lib" ] || { mkdir -p "$root$(dirname "$lib")" && cp -L "$lib" "$root$lib"; }
    done
}

build_entry() {
    root=$work/root
    local out=$work/entry driver program
    mkdir -p "$out" "$root"/{bin,dev,proc,sys,tmp,etc/libibverbs.d,modules,root}
    cp "$(command -v busybox)" "$root/bin/busybox"
    for program in rping ucmatose rdma_server rdma_client ibv_devinfo rdma \
        ib_write_bw ib_read_bw ib_send_bw ib_write_lat ib_read_lat ib_send_lat; do
        install_program "$program"
    done
    for driver in "$libs"/libibverbs/libsiw*; do
        mkdir -p "$root$libs/libibverbs"
        cp -L "$driver" "$root$libs/libibverbs/"
        install_libraries "$driver"
    done
    echo "driver siw" >"$root/etc/libibverbs.d/siw.driver"
    # libpthread loads libgcc_s at run time to cancel a thread, as rping does.
    cp -L "$libs/libgcc_s.so.1" "$root$libs/" 2>/dev/null || cp -L /lib/x86_64-linux-gnu/libgcc_s.so.1 "$root$libs/"

    note "building the agent"
    make -s -C "$agent" OUT="$work/agent" CC=gcc-12 >&2 || fail "the agent does not build"
    cp "$work/agent/uwarp-agent" "$root/bin/"
    install_libraries "$root/bin/uwarp-agent"
    gcc-12 -std=gnu11 -O1 -Wall -Wextra -Werror -o "$out/textbook" "$textbook" -lrdmacm -libverbs >&2 ||
        fail "the textbook program does not build"
    cp "$out/textbook" "$root/bin/"

    cp "$kernel"/modules/* "$root/modules/"
    cp "$here/init" "$root/init"
    chmod 755 "$root/init"
    (cd "$root" && find . -print0 | sort -z |
        cpio --null --create --format=newc --owner=0:0 --quiet | gzip -1) >"$out/initrd"
    ln "$kernel/vmlinuz" "$out/vmlinuz" 2>/dev/null || cp "$kernel/vmlinuz" "$out/vmlinuz"
    {
        echo "kernel Linux $kernel_version ($release), siw from its source"
        echo "rdma-core $(version_of libibverbs1)"
        echo "perftest $(version_of perftest)"
        echo "qemu $(version_of qemu-system-x86)"
    } >"$out/versions"
    rm -rf "$entry"
    mv "$out" "$entry"
}

if [ ! -e "$entry/versions" ]; then
    [ -e "$kernel/vmlinuz" ] || build_kernel
    build_entry
    # Keeps the three newest entries, and the kernels of the last two versions.
    { ls -1dt "$cache"/[0-9]*-* 2>/dev/null || true; } | tail -n +4 | xargs -r rm -rf
    { ls -1dt "$cache"/kernel-* 2>/dev/null || true; } | tail -n +3 | xargs -r rm -rf
fi
note "ready: $(tr '\n' ';' <"$entry/versions")"
echo "$entry"
