#!/bin/bash
# Makes out/vm: a Debian root filesystem with systemd (root.img), Debian's cloud
# kernel (vmlinuz) and an initramfs that finds the root. Made once, then kept;
# remove out/vm to build it again.
set -euo pipefail
cd "$(dirname "$0")/../.."
out=$PWD/out/vm
recipe=$(cat test/vm/image.sh test/vm/container.cil | sha256sum | cut -c1-16)
[ "$(cat "$out/recipe" 2>/dev/null)" != "$recipe" ] || exit 0
rm -rf "$out"
mkdir -p "$out"
cp test/vm/container.cil "$out/"
cd "$out"
echo "vm: making the root filesystem (some minutes)"
debootstrap --variant=minbase \
  --include=systemd,systemd-sysv,dbus,curl,apparmor,iproute2,nftables,iptables,procps,kmod,busybox-static,xfsprogs,runc,containerd,containernetworking-plugins,conntrack,psmisc,selinux-policy-default,policycoreutils \
  bookworm root > debootstrap.log 2>&1 || { tail -5 debootstrap.log >&2; exit 1; }

package=$(apt-cache depends linux-image-cloud-amd64 | awk '$1=="Depends:"{print $2; exit}')
echo "vm: kernel $package"
(cd "$out" && apt-get download -q "$package" > download.log 2>&1) || { tail -5 "$out/download.log" >&2; exit 1; }
dpkg-deb -x "$package"_*.deb kernel
version=$(ls kernel/lib/modules)
depmod -b kernel "$version"
cp "kernel/boot/vmlinuz-$version" vmlinuz

cp -a kernel/lib/modules root/lib/
rm -rf "root/lib/modules/$version/kernel/drivers/"{gpu,scsi,infiniband,media,usb} "root/lib/modules/$version/kernel/sound"
rm -rf root/var/cache/apt/archives/*.deb root/var/lib/apt/lists/*
printf 'LABEL=root / ext4 defaults 0 0\n' > root/etc/fstab
echo vm > root/etc/hostname
printf '127.0.0.1 localhost vm\n::1 localhost\n' > root/etc/hosts
printf 'overlay\nbr_netfilter\nnf_tables\nnf_conntrack\n' > root/etc/modules-load.d/berth.conf
cat > root/etc/systemd/system/berth-test.service <<'UNIT'
[Unit]
Description=the test of this boot
After=multi-user.target systemd-modules-load.service
[Service]
Type=oneshot
ExecStart=/bin/bash -c 'mkdir -p /opt/t && tar -C /opt/t -xf /dev/vdb && cd /opt/t && (bash ./guest.sh; echo $? > /opt/t/out/rc); tar -C /opt/t/out -cf /dev/vdc . ; sync; echo o > /proc/sysrq-trigger'
StandardOutput=tty
StandardError=tty
TTYPath=/dev/ttyS0
TimeoutStartSec=infinity
[Install]
WantedBy=graphical.target
UNIT
mkdir -p root/etc/systemd/system/graphical.target.wants
ln -sf ../berth-test.service root/etc/systemd/system/graphical.target.wants/berth-test.service
ln -sf /lib/systemd/system/graphical.target root/etc/systemd/system/default.target
# Only the shim of package containerd is wanted.
for unit in containerd.service systemd-networkd-wait-online.service systemd-udev-settle.service systemd-binfmt.service apt-daily.timer \
  apt-daily-upgrade.timer e2scrub_all.timer getty@tty1.service serial-getty@ttyS0.service; do
  ln -sf /dev/null "root/etc/systemd/system/$unit"
done
# For the boots with SELinux: permissive until guest.sh enforces, with the types for containers that
# Debian's policy names and does not contain. Labels come last.
printf 'SELINUX=permissive\nSELINUXTYPE=default\n' > root/etc/selinux/config
cp container.cil root/root/
unshare --mount bash -euc '
  mount -t proc proc root/proc
  chroot root semodule -n -s default -i /root/container.cil
  chroot root setfiles -F -m -e /proc /etc/selinux/default/contexts/files/file_contexts /
' > selinux.log 2>&1 || { tail -20 selinux.log >&2; exit 1; }
truncate -s 16G root.img
mke2fs -q -t ext4 -O ^has_journal -L root -d root root.img

init=$(mktemp -d)
mkdir -p "$init"/{bin,proc,sys,dev,m,new}
cp root/bin/busybox "$init/bin/"
number=100
for module in virtio_pci virtio_blk ext4 crc32c_generic; do
  modprobe -d "$out/kernel" -S "$version" --show-depends $module 2>/dev/null | awk '$1=="insmod"{print $2}'
done | awk '!seen[$0]++' > modules
while read -r file; do
  cp "$file" "$init/m/$number-$(basename "$file")"
  number=$((number + 1))
done < modules
cat > "$init/init" <<'INIT'
#!/bin/busybox sh
B=/bin/busybox
$B mount -t proc proc /proc; $B mount -t sysfs sys /sys; $B mount -t devtmpfs dev /dev
for module in /m/*; do $B insmod $module; done
while [ ! -b /dev/vda ]; do $B usleep 50000; done
$B mount -t ext4 /dev/vda /new
$B mount --move /proc /new/proc; $B mount --move /sys /new/sys; $B mount --move /dev /new/dev
exec $B switch_root /new /sbin/init
INIT
chmod +x "$init/init"
(cd "$init" && find . | cpio -o -H newc 2>/dev/null | gzip -1) > initrd.gz
rm -rf "$init" kernel root container.cil ./*.deb
echo "$recipe" > recipe
