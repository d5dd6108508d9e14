// Package require skips tests for a typed reason, and only for one.
//
// A test names the abilities of the host that it needs. Where one is missing the
// test is skipped, unless the environment variable BERTH_REQUIRE lists the ability
// (comma separated, or "all"): then it fails, so that a machine which is declared
// able can never pass by skipping.
package require

import (
	"fmt"
	"os"
	"os/exec"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// Ability is something that a host may or may not have.
type Ability string

// The abilities that tests name. Binary:x is made by Binary.
const (
	AbilityRoot     Ability = "root"
	AbilityCgroupV2 Ability = "cgroup-v2"
	AbilitySystemd  Ability = "systemd"
	AbilityFUSE     Ability = "fuse"
	// AbilityAppArmor is a kernel that enforces profiles, and the tool that loads them.
	AbilityAppArmor Ability = "apparmor"
	// AbilitySELinux is a kernel that enforces a SELinux policy.
	AbilitySELinux Ability = "selinux"
	// AbilityExitEvents is the kernel's process connector in the first namespaces.
	AbilityExitEvents Ability = "exit-events"
	// AbilityDocker is a Docker engine that starts.
	AbilityDocker Ability = "docker"
	// AbilityProjectQuota is a kernel with project quotas for ext4 and xfs.
	AbilityProjectQuota Ability = "project-quota"
	// AbilityCRIU is the program criu, which works with this kernel.
	AbilityCRIU Ability = "criu"
	// AbilityIPv6 is a loopback with ::1.
	AbilityIPv6 Ability = "ipv6"
	// AbilitySCTP is a kernel with SCTP.
	AbilitySCTP Ability = "sctp"
	// AbilityNFTables is an iptables of the variant nf_tables, whose rules berth can write.
	AbilityNFTables Ability = "iptables-nft"
	// AbilityLegacyTables is an iptables-legacy whose tables the kernel has.
	AbilityLegacyTables Ability = "iptables-legacy"
	// AbilityVulnDB is a database of Go's vulnerabilities that answers.
	AbilityVulnDB Ability = "vulndb"
	// AbilityEROFS is a kernel with the file system EROFS.
	AbilityEROFS Ability = "erofs"
	// AbilityFSVerity is a kernel with fs-verity for ext4.
	AbilityFSVerity Ability = "fs-verity"
	// AbilitySpelling is the program hunspell with the dictionary en_GB.
	AbilitySpelling Ability = "spelling"
)

// Root demands that the test runs as root with the capability to mount.
func Root(t testing.TB) {
	t.Helper()
	need(t, AbilityRoot, os.Geteuid() == 0, "the test makes mounts and namespaces")
}

// CgroupV2 demands a unified cgroup hierarchy.
func CgroupV2(t testing.TB) {
	t.Helper()
	_, err := os.Stat("/sys/fs/cgroup/cgroup.controllers")
	need(t, AbilityCgroupV2, err == nil, "/sys/fs/cgroup is not cgroup v2")
}

// Systemd demands that systemd is pid 1.
func Systemd(t testing.TB) {
	t.Helper()
	_, err := os.Stat("/run/systemd/system")
	need(t, AbilitySystemd, err == nil, "/run/systemd/system is absent")
}

// EROFS demands the file system EROFS, for a test that runs as root.
func EROFS(t testing.TB) {
	t.Helper()
	fd, err := unix.Fsopen("erofs", unix.FSOPEN_CLOEXEC) // it loads the module
	if err == nil {
		err = unix.Close(fd)
	}
	need(t, AbilityEROFS, err == nil, fmt.Sprintf("the kernel has no EROFS: %v", err))
}

// FSVerity demands a kernel with fs-verity for ext4.
func FSVerity(t testing.TB) {
	t.Helper()
	_, err := os.Stat("/sys/fs/ext4/features/verity")
	need(t, AbilityFSVerity, err == nil, "/sys/fs/ext4/features/verity is absent")
}

// FUSE demands /dev/fuse.
func FUSE(t testing.TB) {
	t.Helper()
	_, err := os.Stat("/dev/fuse")
	need(t, AbilityFUSE, err == nil, "/dev/fuse is absent")
}

// AppArmor demands a kernel that enforces AppArmor profiles, and apparmor_parser.
func AppArmor(t testing.TB) {
	t.Helper()
	enabled, err := os.ReadFile("/sys/module/apparmor/parameters/enabled")
	need(t, AbilityAppArmor, err == nil && strings.HasPrefix(string(enabled), "Y"), "/sys/module/apparmor/parameters/enabled does not say Y")
	_, err = exec.LookPath("apparmor_parser")
	need(t, AbilityAppArmor, err == nil, "apparmor_parser is not installed")
}

// SELinux demands a kernel that enforces a SELinux policy.
func SELinux(t testing.TB) {
	t.Helper()
	enforces, err := os.ReadFile("/sys/fs/selinux/enforce")
	need(t, AbilitySELinux, err == nil && strings.HasPrefix(string(enforces), "1"), "/sys/fs/selinux/enforce does not say 1")
}

// ExitEvents demands the process connector; err is why it cannot be opened, or nil.
func ExitEvents(t testing.TB, err error) {
	t.Helper()
	need(t, AbilityExitEvents, err == nil, fmt.Sprint(err))
}

// IPv6 demands a loopback with ::1; err is why a process cannot listen there, or nil.
func IPv6(t testing.TB, err error) {
	t.Helper()
	need(t, AbilityIPv6, err == nil, fmt.Sprint(err))
}

// SCTP demands a kernel with SCTP.
func SCTP(t testing.TB) {
	t.Helper()
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM, unix.IPPROTO_SCTP)
	if err == nil {
		_ = unix.Close(fd)
	}
	need(t, AbilitySCTP, err == nil, fmt.Sprint(err))
}

// NFTables demands that the host's iptables is of the variant nf_tables, in a version whose rules berth can write; is is
// whether it is.
func NFTables(t testing.TB, is bool) {
	t.Helper()
	need(t, AbilityNFTables, is, "the host's iptables is not of the variant nf_tables, version 1.8.9 or later")
}

// LegacyTables demands tables of iptables-legacy; err is why it cannot list one, or nil.
func LegacyTables(t testing.TB, err error) {
	t.Helper()
	need(t, AbilityLegacyTables, err == nil, fmt.Sprint(err))
}

// ProjectQuota demands project quotas; err is why a file system cannot be mounted with them, or nil.
func ProjectQuota(t testing.TB, err error) {
	t.Helper()
	need(t, AbilityProjectQuota, err == nil, fmt.Sprint(err))
}

// CRIU demands the program criu in PATH, and that `criu check` finds no fault with this host. It returns where it is.
func CRIU(t testing.TB) string {
	t.Helper()
	path, err := exec.LookPath("criu")
	need(t, AbilityCRIU, err == nil, "criu is not in PATH")
	out, err := exec.CommandContext(t.Context(), path, "check").CombinedOutput()
	need(t, AbilityCRIU, err == nil, "criu check: "+string(out))
	return path
}

// Spelling demands hunspell with a dictionary; err is why it cannot check a word, or nil.
func Spelling(t testing.TB, err error) {
	t.Helper()
	need(t, AbilitySpelling, err == nil, fmt.Sprint(err))
}

// Docker demands that a Docker engine starts on this host. err is why it does not, nil if it does.
func Docker(t testing.TB, err error) {
	t.Helper()
	need(t, AbilityDocker, err == nil, fmt.Sprint(err))
}

// Engine demands that the engine under test can do what is named; why is nil if it can.
func Engine(t testing.TB, what string, why error) {
	t.Helper()
	need(t, Ability("engine:"+what), why == nil, fmt.Sprint(why))
}

// Binary demands a program in PATH and returns where it is.
func Binary(t testing.TB, name string) string {
	t.Helper()
	path, err := exec.LookPath(name)
	need(t, Ability("binary:"+name), err == nil, name+" is not in PATH")
	return path
}

// Given demands what an environment variable names: a thing that the tests cannot make.
func Given(t testing.TB, variable, what string) string {
	t.Helper()
	given := os.Getenv(variable)
	need(t, Ability("env:"+variable), given != "", variable+" names no "+what)
	return given
}

// Declared reports whether BERTH_REQUIRE declares an ability: what needs it must not be skipped.
func Declared(ability Ability) bool {
	for _, declared := range strings.Split(os.Getenv("BERTH_REQUIRE"), ",") {
		if declared == "all" || Ability(declared) == ability {
			return true
		}
	}
	return false
}

func need(t testing.TB, ability Ability, present bool, why string) {
	t.Helper()
	if present {
		return
	}
	if Declared(ability) {
		t.Fatalf("ability %q is declared by BERTH_REQUIRE but missing: %s", ability, why)
	}
	t.Skipf("needs ability %q: %s", ability, why)
}
