#!/bin/bash
# boot.sh DIR [SECONDS]: boots the VM of image.sh with the content of DIR at /opt/t
# and runs its guest.sh as root. Prints the console. Copies /opt/t/out of the guest to
# DIR/out. The exit code is guest.sh's, 125 if it never ended.
# BERTH_VM_LSM is the kernel's security module: apparmor (default) or selinux. BERTH_VM_CGROUPS is the version of
# cgroups: v2 (default) or v1.
# BERTH_VM_DISK is an image of a disk that outlives the VM (power.sh). DIR/qemu.pid has the emulator's process.
# Emulated (TCG): about twelve times slower than the host, all capabilities, no network.
set -euo pipefail
dir=$(realpath "${1:?usage: boot.sh DIR [SECONDS]}")
seconds=${2:-900}
vm=$(dirname "$(realpath "$0")")/../../out/vm
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir -p "$dir/out"
tar -C "$dir" -cf "$work/in.tar" .
truncate -s %512 "$work/in.tar"
truncate -s 64M "$work/out.tar"
cgroups=systemd.unified_cgroup_hierarchy=1
[ "${BERTH_VM_CGROUPS:-v2}" = v2 ] || cgroups="systemd.unified_cgroup_hierarchy=0 systemd.legacy_systemd_cgroup_controller=1"
disk=()
[ -z "${BERTH_VM_DISK:-}" ] || disk=(-drive "file=$BERTH_VM_DISK,if=virtio,format=raw,cache=writeback")
timeout "$seconds" qemu-system-x86_64 -accel tcg,thread=multi -cpu max -smp 2 -m "${MEMORY:-4096}" \
  -pidfile "$dir/qemu.pid" -display none -monitor none -serial stdio -no-reboot -nic none \
  -kernel "$vm/vmlinuz" -initrd "$vm/initrd.gz" \
  -drive file="$vm/root.img",if=virtio,format=raw,cache=unsafe,snapshot=on \
  -drive file="$work/in.tar",if=virtio,format=raw,readonly=on \
  -drive file="$work/out.tar",if=virtio,format=raw,cache=unsafe "${disk[@]}" \
  -append "console=ttyS0 panic=-1 quiet root=/dev/vda rw $cgroups systemd.show_status=0 mitigations=off security=${BERTH_VM_LSM:-apparmor}" \
  < /dev/null || echo "vm: qemu ended with $?"
tar -C "$dir/out" -xf "$work/out.tar" 2>/dev/null || true
exit "$(cat "$dir/out/rc" 2>/dev/null || echo 125)"
