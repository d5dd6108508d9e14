#!/bin/bash
# guest.sh runs in the VM, as root, in the directory that boot.sh has copied.
# Each step's output goes to out/STEP.log, a line per test to the console.
set -uo pipefail
here=$PWD
export BERTH_BIN=/usr/local/bin KUBELET=$here/kubelet BERTH_POWER_CONSOLES=$here/consoles BERTH_NODE_IMAGE=$here/node.tar BERTH_ATTACK=$here/attack HOME=/root
export PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin
# The kernel's security module.
lsm=apparmor
[ ! -e /sys/fs/selinux/enforce ] || lsm=selinux
# Debian's policy does not allow units what a test does to its machine. Logins may do it.
if [ $lsm = selinux ] && ! grep -q :unconfined_t: /proc/self/attr/current; then
  exec runcon -t unconfined_t bash "$0"
fi
hierarchy=cgroup-v2,
[ -e /sys/fs/cgroup/cgroup.controllers ] || hierarchy= # boot.sh with BERTH_VM_CGROUPS=v1
# Emulated. The machine declares all abilities, so that no test skips.
export BERTH_TEST_SLOW=10 BERTH_REQUIRE=root,systemd,$hierarchy$lsm,binary:runc,binary:containerd-shim-runc-v2,project-quota,erofs,fs-verity,binary:mkfs.ext4,binary:mkfs.xfs \
  BERTH_CRASH_ROUNDS=4 BERTH_CRASH_ACTORS=2

# What a step runs: a test binary and its flags. TestPodRunExample needs the repository.
declare -A steps=(
  [units]="vm -test.run TestInstalled|TestGPU"
  [lifecycle]="integration -test.run TestPod|TestStatus|TestStop|TestExec|TestNetwork|TestNoDescriptor|TestReopened|TestStats|TestMountFlags|TestContainersThat|TestNoAnnotation|TestProcesses -test.skip Hung|TestPodRunExample"
  [fields]="integration -test.run TestField|TestRPC|TestStreaming|TestLogLines"
  [engine]="native"
  [supervisor]="server -test.skip Crash"
  [network]="builtin -test.skip Bench"
  [helpers]="cgroup -test.run Helpers|Sweep|Renewed"
  [quota]="integration -test.run TestWritableLimit|TestErofs -test.skip AReboot"
  [verity]="erofs"
  [crash]="integration -test.run TestCrash"
  [kubelet]="vm -test.run TestKubelet"
  [power]="vm -test.run TestPowerLoss"
  [selinux]="integration -test.run SELinux|TestPodInit|TestContainersThat"
  [cluster]="e2e -test.run TestClusterOfInstalledBerth -test.timeout 110m"
)
# upgrade-VERSION is a step for each release that run.sh has copied.
for release in "$here"/releases/*/; do
  [ ! -d "$release" ] || steps[upgrade-$(basename "$release")]="e2e -test.run ^TestUpgradeLong\$ -test.timeout 110m"
done
# The steps that run by default, for each security module. cluster and upgrade run only if they are named.
declare -A order=(
  [apparmor]="units lifecycle fields quota verity helpers engine supervisor network kubelet crash"
  [selinux]="selinux"
)

setup() {
  cp -a --no-preserve=context root/. / # labels are those of where the files are now
  sed -i 's/^mode = .*/mode = "builtin"/' /etc/berth/berth.toml
  grep -q '^mode = "builtin"' /etc/berth/berth.toml
  # A default route, which pods and the kubelet need.
  ip netns add world
  ip link add up0 type veth peer name down0 netns world
  ip addr add 192.0.2.10/24 dev up0
  ip -n world addr add 192.0.2.1/24 dev down0
  ip link set up0 up
  ip -n world link set down0 up
  ip route add default via 192.0.2.1
  if [ -b /dev/vdd ]; then # the disk of power.sh
    mkdir -p /data
    mount /dev/vdd /data || return # bash ignores -e here: setup is called in a condition
    for dir in /var/lib/berth /var/log/pods; do
      mkdir -p "$dir" "/data$dir"
      mount --bind "/data$dir" "$dir" || return
    done
  fi
  systemctl daemon-reload
  systemctl enable berth-supervisor.service berth.service
  systemctl start berth.service
}

# one STEP[=PATTERN]: runs a step, or the tests in it that PATTERN names.
one() {
  local name=${1%%=*} binary arguments
  read -r binary arguments <<< "${steps[$name]}"
  [ "$1" = "$name" ] || arguments="-test.run ${1#*=}"
  [ "$name" = "${name#upgrade-}" ] || export BERTH_BEFORE=$here/releases/${name#upgrade-}
  cd "$(mktemp -d)" && "$here/tests/$binary.test" -test.v -test.timeout 30m $arguments
}

echo "vm: $(uname -r), systemd $(systemctl --version | awk 'NR==1{print $2}'), $(stat -fc %T /sys/fs/cgroup), $(cut -d' ' -f1 /proc/uptime) s after boot"
if ! (set -e; setup) > out/setup.log 2>&1; then
  cat out/setup.log
  journalctl --no-pager -n 40 -u berth -u berth-supervisor
  exit 1
fi
if [ $lsm = selinux ]; then
  setenforce 1 # the machine started permissive: it is Debian's, and not what is tested
  echo "vm: SELinux is $(getenforce), policy $(cat /sys/fs/selinux/policyvers)"
fi
wanted=$(cat steps)
rc=0
for step in ${wanted:-${order[$lsm]}}; do
  begin=$(date +%s)
  log=$here/out/${step%%=*}.log
  (one "$step") 2>&1 | tee "$log" | grep --line-buffered -E '^--- (FAIL|SKIP|PASS)| upgraded to '
  if [ "${PIPESTATUS[0]}" = 0 ]; then
    echo "vm: $step: ok in $(($(date +%s) - begin)) s"
  else
    rc=1
    grep -E -A 4 '^(    [a-z_]+\.go:|panic:|--- FAIL)' "$log" | cut -c1-1000 | head -n 80
    echo "vm: $step: FAILED after $(($(date +%s) - begin)) s"
  fi
  [ $lsm = apparmor ] || dmesg | grep 'avc:  denied' > out/avc.log
  journalctl --no-pager -b -u berth -u berth-supervisor > out/berth.journal 2>&1
  journalctl --no-pager -b -p warning > out/warnings.journal 2>&1
  tar -C out -cf /dev/vdc . # what there is, should the machine not come to its end
done
exit $rc
