//go:build e2e

package e2e

import (
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/berthrun/berth/internal/provision/node/distro"
	"github.com/berthrun/berth/test/systemd"
)

// packRPMs builds packages with the names in its arguments, and a repository of them for dnf and
// zypper. conntrack-tools brings two libraries, one of which needs the other. Debian's rpm would
// use a database for each user, which no distribution with RPMs does.
const packRPMs = `set -e
mkdir -p /etc/rpm && echo "%_dbpath /var/lib/rpm" > /etc/rpm/macros.test
mkdir -p /srv/repo /etc/yum.repos.d /etc/zypp/repos.d /tmp/rpm && cd /tmp/rpm
for name in "$@" libnetfilter-of-a-name-that-is-too-long-for-one-line liba; do
  needs=
  case $name in
    conntrack-tools) needs="Requires: libnetfilter-of-a-name-that-is-too-long-for-one-line" ;;
    libnetfilter*) needs="Requires: liba" ;;
  esac
  cat > "$name.spec" <<EOF
Name: $name
Version: 1.0
Release: 1
Summary: a test's
License: none
BuildArch: noarch
$needs
%description
A test's.
%install
mkdir -p %{buildroot}/usr/share/test && echo $name > %{buildroot}/usr/share/test/$name
%files
%dir /usr/share/test
/usr/share/test/$name
EOF
  rpmbuild -bb --quiet --define "_topdir /tmp/rpm" --define "_rpmdir /srv/repo" "$name.spec"
done
createrepo_c -q /srv/repo
printf '[test]\nname=test\nbaseurl=file:///srv/repo\nenabled=1\ngpgcheck=0\n' | tee /etc/yum.repos.d/test.repo > /etc/zypp/repos.d/test.repo
mv /usr/bin/apt-get /usr/bin/apt-get.off
`

// volatileOfRPM is what rpm, dnf and zypper write for themselves.
var volatileOfRPM = []string{"/var/lib/rpm", "/var/lib/dnf", "/var/cache/dnf", "/var/lib/zypp", "/var/cache/zypp", "/etc/zypp"}

// TestNodeOfRPM creates nodes on machines with RPM packages, by the real dnf and zypper. No such
// distribution is available here: the machine is Debian with another os-release, and the packages
// are empty and have the names of that distribution.
func TestNodeOfRPM(t *testing.T) {
	debs, err := filepath.Glob("../../out/systemd-rpm/*.deb")
	if err != nil || len(debs) == 0 {
		t.Fatalf("the packages are not there: run test/systemd/debs.sh out/systemd-rpm dnf zypper rpm createrepo-c: %v", err)
	}
	for _, c := range []struct{ release, manager string }{
		{"fedora 43", "dnf"}, {"rocky 9", "dnf"}, {"opensuse-leap 15.6", "zypper"},
	} {
		t.Run(c.release, func(t *testing.T) {
			m := machineOfRPM(t, debs, c.release, c.manager)
			m.Write("/etc/hello-pod.yaml", webPod)
			m.Describe(berthOfPackages)
			before, packages := m.Tree(systemd.Volatile()...), m.Run("rpm", "-qa")
			m.Applied(berthOfPackages)
			m.IsWell()
			if out := m.Run("rpm", "-q", "conntrack-tools", "socat", "liba"); strings.Contains(out, "not installed") {
				t.Errorf("packages are missing:\n%s", out)
			}
			m.Run("/opt/berth", "pod", "run", "-d", "-f", "/etc/hello-pod.yaml")
			m.PodAnswers("unix:///run/berth/berth.sock", 8081)

			m.Run("rpm", "-e", "socat")
			if out, err := m.Try("/opt/berth", "node", "diff"); err == nil || !strings.Contains(out, "package socat is not installed") {
				t.Errorf("diff ends with %v, and does not say that socat is gone:\n%s", err, out)
			}
			m.Run("/opt/berth", "node", "apply", "--yes")

			// Nothing is left of a package that no repository has.
			half := m.Tree(append(systemd.Volatile(), volatileOfRPM...)...)
			m.Describe(berthOfPackages + "packages: {install: [no-such-package]}\n")
			if out, err := m.Try("/opt/berth", "node", "apply", "--yes"); err == nil || !strings.Contains(out, "no-such-package") || !strings.Contains(out, "rolled back") {
				t.Errorf("apply ends with %v, and does not say that there is no such package:\n%s", err, out)
			}
			m.Describe(berthOfPackages)
			m.IsAs(half, "an apply that wants a package that nobody has", append(stateOnly, volatileOfRPM...)...)

			out := m.Run("/opt/berth", "node", "reset", "--yes", "--allow-disruption")
			m.Run("rm", "-rf", "/var/lib/berth-pods")
			if strings.Contains(out, "left unchanged") {
				t.Errorf("reset leaves something:\n%s", out)
			}
			m.IsAs(before, "a reset", volatileOfRPM...)
			if diff := cmp.Diff(packages, m.Run("rpm", "-qa")); diff != "" {
				t.Errorf("reset leaves other packages (-before +after):\n%s", diff)
			}
		})
	}
}

// machineOfRPM boots a machine with the os-release of a distribution, its package manager and a
// repository.
func machineOfRPM(t *testing.T, debs []string, release, manager string) *systemd.Machine {
	t.Helper()
	files := map[string]string{}
	for _, deb := range debs {
		files["/var/cache/apt/archives/"+filepath.Base(deb)] = deb
	}
	m := systemd.BootNodeOf(t, systemd.Options{Add: files})
	m.Run("apt-get", "install", "-y", "-q", "--no-download", "--no-install-recommends", "rpm", "createrepo-c", manager)
	d, err := distro.Release(release)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, p := range []distro.Package{
		distro.CNIPlugins, distro.Conntrack, distro.Ethtool, distro.IPRoute, distro.Iptables, distro.Kmod, distro.LibAppArmor,
		distro.Nftables, distro.Seccomp, distro.SELinux, distro.Socat, distro.UtilLinux,
	} {
		if name := d.Package(p); name != "" {
			names = append(names, name)
		}
	}
	m.Write("/opt/pack.sh", packRPMs)
	m.Run(slices.Concat([]string{"bash", "/opt/pack.sh"}, names)...)
	m.Write("/usr/lib/os-release", fmt.Sprintf("ID=%s\nVERSION_ID=%q\nPRETTY_NAME=%q\n", d.ID, d.Version, release))
	return m
}
