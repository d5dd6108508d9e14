//go:build integration && e2e

package packages

import (
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/systemd"
)

// Directories of a machine with what is installed.
const (
	today  = "/opt/today"
	before = "/opt/before"
)

// manager is a way to install berth.
type manager struct {
	name string
	// suffix is that of the file in the directory of packages.
	suffix string
	// install installs, upgrades or downgrades to a file.
	install func(m *systemd.Machine, file string) (string, error)
	// remove removes; purge also removes the state, nil if there is no such thing.
	remove, purge func(m *systemd.Machine) (string, error)
	// bin is the directory of the programs.
	bin string
	// debs are the packages of Debian with the manager, program the variable that names it instead.
	debs    []string
	program string
	// prepare is a script that gives the manager what its own distribution would have.
	prepare string
}

const (
	rpmSuffix = ".x86_64.rpm"
	// Debian's rpm would use a database for each user, which no distribution with RPMs does.
	rpmDatabase = `set -e
mkdir -p /etc/rpm && echo "%_dbpath /var/lib/rpm" > /etc/rpm/macros.test
`
	// rpmRepository is a repository with a package, which is installed: no distribution has an empty database, with which
	// zypper fails.
	rpmRepository = `mkdir -p /srv/repo /etc/yum.repos.d /etc/zypp/repos.d
cat > /tmp/filler.spec <<EOF
Name: filler
Version: 1.0
Release: 1
Summary: a test's
License: none
BuildArch: noarch
%description
A test's.
%files
EOF
rpmbuild -bb --quiet --define "_topdir /tmp/rpm" --define "_rpmdir /srv/repo" /tmp/filler.spec
createrepo_c -q /srv/repo
rpm -i /srv/repo/noarch/filler-1.0-1.noarch.rpm
printf '[test]\nname=test\nbaseurl=file:///srv/repo\nenabled=1\ngpgcheck=0\n' | tee /etc/yum.repos.d/test.repo > /etc/zypp/repos.d/test.repo
`
	apkProgram = "/opt/apk"
	// The apk has scripts of OpenRC, which systemd would take for scripts of System V. The machine has systemd, and the
	// units of the other packages.
	apkDatabase = `set -e
` + apkProgram + ` add --initdb --no-network
for unit in /opt/units/*.service; do sed 's#@BINDIR@#/usr/bin#' "$unit" > "/etc/systemd/system/${unit##*/}"; done
ln -sf /bin/true /lib/systemd/systemd-sysv-install
systemctl daemon-reload
`
)

// managers are all of them.
func managers() map[string]manager {
	return map[string]manager{
		"deb": {
			name: "deb", suffix: "_amd64.deb", bin: "/usr/bin",
			install: func(m *systemd.Machine, file string) (string, error) { return m.Try("dpkg", "-i", file) },
			remove:  func(m *systemd.Machine) (string, error) { return m.Try("dpkg", "-r", "berth") },
			purge:   func(m *systemd.Machine) (string, error) { return m.Try("dpkg", "--purge", "berth") },
		},
		"rpm": {
			name: "rpm", suffix: rpmSuffix, bin: "/usr/bin", debs: []string{"rpm"}, prepare: rpmDatabase,
			install: func(m *systemd.Machine, file string) (string, error) {
				return m.Try("rpm", "-U", "--oldpackage", file)
			},
			remove: func(m *systemd.Machine) (string, error) { return m.Try("rpm", "-e", "berth") },
		},
		"dnf": {
			name: "dnf", suffix: rpmSuffix, bin: "/usr/bin", debs: []string{"rpm", "createrepo-c", "dnf"}, prepare: rpmDatabase + rpmRepository,
			install: func(m *systemd.Machine, file string) (string, error) {
				verb := "install"
				if _, err := m.Try("rpm", "-q", "berth"); err == nil && strings.HasPrefix(file, before) {
					verb = "downgrade"
				}
				return m.Try("dnf", verb, "-y", file)
			},
			remove: func(m *systemd.Machine) (string, error) { return m.Try("dnf", "remove", "-y", "berth") },
		},
		"zypper": {
			name: "zypper", suffix: rpmSuffix, bin: "/usr/bin", debs: []string{"rpm", "createrepo-c", "zypper"}, prepare: rpmDatabase + rpmRepository,
			install: func(m *systemd.Machine, file string) (string, error) {
				return m.Try("zypper", "--non-interactive", "install", "--allow-unsigned-rpm", "--oldpackage", file)
			},
			remove: func(m *systemd.Machine) (string, error) {
				return m.Try("zypper", "--non-interactive", "remove", "berth")
			},
		},
		"apk": {
			name: "apk", suffix: "_x86_64.apk", bin: "/usr/bin", program: "BERTH_APK", prepare: apkDatabase,
			install: func(m *systemd.Machine, file string) (string, error) {
				return m.Try(apkProgram, "add", "--allow-untrusted", "--no-network", file)
			},
			remove: func(m *systemd.Machine) (string, error) { return m.Try(apkProgram, "del", "--no-network", "berth") },
		},
		"archive": {
			name: "archive", suffix: "-linux-amd64.tar.gz", bin: "/usr/local/bin",
			install: func(m *systemd.Machine, file string) (string, error) {
				return m.Try("sh", "-c", "rm -rf /opt/archive && mkdir /opt/archive && tar -xzf "+file+" -C /opt/archive --strip-components=1 && /opt/archive/install.sh")
			},
			remove: func(m *systemd.Machine) (string, error) { return m.Try("/opt/archive/install.sh", "--uninstall") },
		},
	}
}

// host is a machine with packages of this berth and of an older one.
type host struct {
	*systemd.Machine
	t *testing.T
	manager
	// todays and olds are the files of the two versions.
	todays, olds string
	pods         int
}

// boot boots a machine of a release of a distribution.
func boot(t *testing.T, release, name string) *host {
	t.Helper()
	mgr := managers()[name]
	add := map[string]string{"/opt/hello-image.tar": filepath.Join(harness.BinDir(t), "hello-image.tar")}
	h := &host{t: t, manager: mgr, pods: podCount(t)}
	for _, p := range []struct {
		variable, dir string
		file          *string
	}{{"BERTH_PACKAGES", today, &h.todays}, {"BERTH_PACKAGES_BEFORE", before, &h.olds}} {
		files, err := filepath.Glob(filepath.Join(require.Given(t, p.variable, "directory of packages: run make packages-test"), "*"+mgr.suffix))
		if err != nil || len(files) != 1 {
			t.Fatalf("%s has %d files *%s: %v", p.variable, len(files), mgr.suffix, err)
		}
		*p.file = filepath.Join(p.dir, filepath.Base(files[0]))
		add[*p.file] = files[0]
	}
	if mgr.debs != nil {
		debs, err := filepath.Glob("../../out/systemd-rpm/*.deb")
		if err != nil || len(debs) == 0 {
			t.Fatalf("rpm for the machine is not there: run test/systemd/debs.sh out/systemd-rpm dnf zypper rpm createrepo-c: %v", err)
		}
		for _, deb := range debs {
			add["/var/cache/apt/archives/"+filepath.Base(deb)] = deb
		}
	}
	if mgr.program != "" {
		add[apkProgram] = require.Given(t, mgr.program, "static program apk: docs/packages.md has how to build it")
		for _, unit := range []string{"berth", "berth-supervisor", "berth-cluster"} {
			add["/opt/units/"+unit+".service"] = "../../build/" + unit + ".service"
		}
	}
	h.Machine = systemd.Boot(t, systemd.Options{Release: release, Add: add})
	if mgr.debs != nil {
		h.Run(append([]string{"apt-get", "install", "-y", "-q", "--no-download", "--no-install-recommends"}, mgr.debs...)...)
	}
	if mgr.prepare != "" {
		h.Run("bash", "-c", mgr.prepare)
	}
	return h
}

// podCount is how many pods live through the changes: 50, or BERTH_PACKAGES_PODS.
func podCount(t *testing.T) int {
	given := os.Getenv("BERTH_PACKAGES_PODS")
	if given == "" {
		return 50
	}
	n, err := strconv.Atoi(given)
	if err != nil || n < 1 {
		t.Fatalf("BERTH_PACKAGES_PODS is %q; want a number of pods", given)
	}
	return n
}

// do requires success of a step of the package manager and returns what it printed.
func (h *host) do(what string, step func() (string, error)) string {
	h.t.Helper()
	out, err := step()
	if err != nil {
		h.t.Fatalf("%s: %v\n%s\n%s", what, err, out, h.journal())
	}
	return out
}

func (h *host) installs(file string) string {
	h.t.Helper()
	return h.do("install "+file, func() (string, error) { return h.install(h.Machine, file) })
}

func (h *host) removes() string {
	h.t.Helper()
	return h.do("remove", func() (string, error) { return h.remove(h.Machine) })
}

func (h *host) journal() string {
	out, _ := h.Try("journalctl", "--no-pager", "-o", "cat", "-n", "40", "-u", "berth", "-u", "berth-supervisor")
	return out
}

// berth runs the installed program.
func (h *host) berth(args ...string) string {
	h.t.Helper()
	return h.Run(append([]string{h.bin + "/berth"}, args...)...)
}

// start enables and starts the services, with the network that needs nothing.
func (h *host) start() {
	h.t.Helper()
	h.Write("/etc/berth/berth.toml", configuration)
	h.Run("systemctl", "enable", "--now", "berth-supervisor", "berth")
}

const configuration = "# mine\n[network]\nmode = \"builtin\"\n"

// pod is a pod that counts in its log, one number a line. A word in its command identifies the process.
const pod = `apiVersion: v1
kind: Pod
metadata: {name: %[1]s}
spec:
  restartPolicy: Never
  containers:
  - name: count
    image: berth.run/hello:demo
    command: [sh, -c, ": counter-%[1]s-; i=0; while true; do i=$((i+1)); echo $i; sleep 1; done"]
`

// runPods starts the pods and waits until each has written a line.
func (h *host) runPods() {
	h.t.Helper()
	h.berth("image", "import", "/opt/hello-image.tar")
	for i := range h.pods {
		h.runPod(fmt.Sprintf("p%d", i))
	}
	h.await("a line of each pod", func() bool {
		for i := range h.pods {
			if strings.TrimSpace(h.berth("pod", "logs", fmt.Sprintf("p%d", i))) == "" {
				return false
			}
		}
		return true
	})
}

func (h *host) runPod(name string) {
	h.t.Helper()
	file := "/opt/pods/" + name + ".yaml"
	h.Write(file, fmt.Sprintf(pod, name))
	h.berth("pod", "run", "-d", "-f", file)
}

// findCounters lists the first processes of the pods with the time of their start.
const findCounters = `for pid in $(pgrep -f 'counter-p[0-9]+[-]'); do
  [ "$(readlink /proc/$pid/ns/pid)" != "$(readlink /proc/self/ns/pid)" ] || continue
  name=$(tr '\0' ' ' < /proc/$pid/cmdline | grep -o 'counter-p[0-9]*-')
  stat=$(cat /proc/$pid/stat); set -- ${stat##*) }
  echo "$name $pid ${20}"
done | sort`

// processes are the pods' processes: they are the same as long as nothing has restarted.
func (h *host) processes() string {
	h.t.Helper()
	return h.Run("bash", "-c", findCounters)
}

// alive requires the processes of before, and that all pods of berth run.
func (h *host) alive(what, processes string) {
	h.t.Helper()
	h.sameProcesses(what, processes)
	for i := range h.pods {
		name := fmt.Sprintf("p%d", i)
		counted(h.t, what, name, h.berth("pod", "logs", name))
	}
}

func (h *host) sameProcesses(what, processes string) {
	h.t.Helper()
	if now := h.processes(); now != processes {
		h.t.Fatalf("after the %s the pods' processes are\n%s\nbefore\n%s\n%s", what, now, processes, h.journal())
	}
}

// counted requires a log with each number once.
func counted(t *testing.T, what, name, log string) {
	t.Helper()
	n := 0
	for line := range strings.Lines(log) {
		n++
		if strings.TrimSpace(line) != strconv.Itoa(n) {
			t.Errorf("after the %s line %d of the log of pod %s is %q", what, n, name, line)
			return
		}
	}
	if n == 0 {
		t.Errorf("after the %s the log of pod %s is empty", what, name)
	}
}

// await waits for a condition.
func (h *host) await(what string, done func() bool) {
	h.t.Helper()
	for deadline := time.Now().Add(require.Patience(time.Minute)); !done(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(deadline) {
			h.t.Fatalf("timed out waiting for %s\n%s", what, h.journal())
		}
	}
}

// property is one of a unit, as systemctl shows it.
func (h *host) property(unit, name string) string {
	h.t.Helper()
	return strings.TrimSpace(h.Run("systemctl", "show", "--property", name, "--value", unit))
}

// runsInstalled reports whether daemon and supervisor execute the programs that are installed.
func (h *host) runsInstalled() bool {
	out, err := h.Try("bash", "-c", `for name in berth berth-supervisor; do
  for pid in $(pgrep -x "${name:0:15}"); do
    [ "$(tr '\0' ' ' < /proc/$pid/cmdline | cut -d' ' -f2)" = serve ] || continue
    [ "$(stat -Lc %d:%i /proc/$pid/exe)" = "$(stat -Lc %d:%i `+h.bin+`/$name)" ] && echo "$name"
  done
done | sort -u | tr '\n' ' '`)
	return err == nil && strings.TrimSpace(out) == "berth berth-supervisor"
}
