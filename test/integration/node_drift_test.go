//go:build integration

package integration

import (
	"bufio"
	"context"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/test/systemd"
)

// manyThings is a node with an object of nearly every kind.
const manyThings = `
apiVersion: berth.run/v1alpha1
kind: Node
runtime: {name: berth}
network: {masquerade: {enabled: true, nonMasqueradeCIDRs: [10.0.0.0/8]}}
kernel: {defaultSysctls: false, sysctls: {net.ipv4.conf.default.accept_redirects: "0"}}
registries: [{host: docker.io, mirrors: [{url: "https://mirror.example"}]}]
groups: [{name: helpers, gid: 3000}, {name: others, gid: 3001}]
users:
- {name: ops, uid: 2000, groups: [helpers], shell: /bin/sh}
- {name: dev, uid: 2001, groups: [helpers], shell: /bin/sh}
- {name: guest, uid: 2002}
files:
- {path: /etc/own, type: directory, mode: "0750"}
- {path: /etc/own/empty, type: directory}
- {path: /etc/own/file, content: x}
- {path: /etc/own/link, type: symlink, target: file}
units:
- {name: own.service, content: "[Service]\nType=oneshot\nRemainAfterExit=yes\nExecStart=/bin/true\n[Install]\nWantedBy=multi-user.target\n"}
- {name: other.service, content: "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"}
- {name: foreign.service, enabled: true, running: true}
images:
- {source: /opt/hello-image.tar, digest: "sha256:@HELLO@", names: ["berth.run/hello:demo"]}
`

// foreignUnit is a unit that does not belong to berth.
const foreignUnit = "[Service]\nExecStart=/bin/sleep infinity\n[Install]\nWantedBy=multi-user.target\n"

// TestNodeDrift changes a node by hand in all the ways that people do. diff names each change, one
// apply repairs all, and what never belonged to berth stays as it is.
func TestNodeDrift(t *testing.T) {
	m := systemd.BootNode(t, nil)
	m.Write("/usr/lib/systemd/system/foreign.service", foreignUnit)
	m.Describe(manyThings)
	before := m.Tree(systemd.Volatile()...)
	m.Run("/opt/berth", "node", "apply", "--yes")
	// The installed berth is the wanted one, too, so apply installs nothing.
	m.Run("/usr/local/bin/berth", "node", "diff")
	m.Write("/etc/systemd/system/berth.service.d/99-own.conf", "[Service]\nNice=5\n")
	m.Write("/etc/berth/certs.d/own.example/hosts.toml", "# mine\n")
	m.Run("systemctl", "daemon-reload")

	for _, c := range []struct{ spoil, want string }{
		{"rm /etc/berth/berth.toml", "file /etc/berth/berth.toml is not there"},
		{"chmod 600 /usr/local/bin/berth", "mode: 0600 → 0755"},
		{"cp --remove-destination /bin/true /usr/local/bin/berth-supervisor", "file /usr/local/bin/berth-supervisor content differs"},
		{"chown 4711 /etc/crictl.yaml", "uid: 4711 → 0"},
		{"ln -sfn /dev/null /etc/systemd/system/own.service", "file /etc/systemd/system/own.service is a link"},
		{"systemctl stop other.service", "unit other.service does not run"},
		{"systemctl mask --now foreign.service", "unit foreign.service is masked"},
		{"systemctl disable berth-supervisor.service", "unit berth-supervisor.service is not enabled"},
		{"echo '# x' >> /etc/systemd/system/berth.service", "file /etc/systemd/system/berth.service content differs"},
		{"nft flush ruleset", "unit berth-masquerade.service runs, and what it made is gone"},
		{"sysctl -w net.ipv4.conf.default.accept_redirects=1", "sysctl net.ipv4.conf.default.accept_redirects value differs"},
		{"sed -i s/0/1/ /etc/sysctl.d/99-zz-berth-node.conf", "file /etc/sysctl.d/99-zz-berth-node.conf content differs"},
		{"rm /etc/modules-load.d/berth-node.conf", "file /etc/modules-load.d/berth-node.conf is not there"},
		{"rm -r /etc/berth/certs.d/docker.io", "file /etc/berth/certs.d/docker.io/hosts.toml is not there"},
		{"usermod -s /bin/bash ops", "shell: /bin/bash → /bin/sh"},
		{"gpasswd -d dev helpers", "groups: helpers"},
		{"userdel guest", "user guest is not there"},
		{"groupmod -g 3002 others", "gid: 3002 → 3001"},
		{"dpkg -r socat", "package socat is not installed"},
		{"chmod 777 /etc/own", "mode: 0777 → 0750"},
		{"rmdir /etc/own/empty", "dir /etc/own/empty is not there"},
		{"ln -sf /etc/hostname /etc/own/file", "file /etc/own/file is a link"},
		{"cp --remove-destination /etc/hostname /etc/own/link", "file /etc/own/link is a file"},
		{"/opt/berth image rm berth.run/hello:demo", "image berth.run/hello:demo the runtime does not have it"},
	} {
		m.Run("sh", "-c", c.spoil)
		out, err := m.Try("/opt/berth", "node", "diff")
		if exitCode(err) != 2 || !strings.Contains(out, c.want) {
			t.Errorf("after %s diff ends with %v and does not say %q:\n%s", c.spoil, err, c.want, out)
		}
	}
	m.Run("/opt/berth", "node", "apply", "--yes")
	m.Run("/opt/berth", "node", "diff")
	m.Run("nft", "list", "table", "ip", "berth-node")
	// A firewall that reloads or restarts flushes all rules, and berth's rules are loaded after it.
	m.Run("cp", "-p", "/etc/nftables.conf", "/run/nftables.conf")
	m.Write("/etc/nftables.conf", "flush ruleset\ntable inet own {\n}\n")
	m.Run("sh", "-c", "systemctl start nftables.service && systemctl restart berth-masquerade.service")
	for _, verb := range []string{"reload", "restart"} {
		m.Run("systemctl", verb, "nftables.service")
		m.Run("nft", "list", "table", "inet", "own")
		m.Run("nft", "list", "table", "ip", "berth-node")
	}
	m.Run("systemctl", "stop", "nftables.service")
	m.Run("mv", "/run/nftables.conf", "/etc/nftables.conf")
	m.Run("/opt/berth", "node", "apply", "--yes")
	m.Run("grep", "-q", "Nice=5", "/etc/systemd/system/berth.service.d/99-own.conf")
	m.Run("grep", "-q", "mine", "/etc/berth/certs.d/own.example/hosts.toml")

	t.Run("immutable", func(t *testing.T) {
		m.Run("sh", "-c", "echo x >> /etc/crictl.yaml && chattr +i /etc/crictl.yaml")
		out, err := m.Try("/opt/berth", "node", "apply", "--yes")
		if err == nil || !strings.Contains(out, "/etc/crictl.yaml is immutable (lsattr -d shows it, chattr -i takes it back)") {
			t.Errorf("apply says %v, want an error that names the immutable file:\n%s", err, out)
		}
		m.Run("chattr", "-i", "/etc/crictl.yaml")
		m.Run("/opt/berth", "node", "apply", "--yes")
		m.Run("/opt/berth", "node", "diff")
	})

	t.Run("assets", func(t *testing.T) { assetsThatFail(t, m) })
	t.Run("package manager in use", func(t *testing.T) { packagesInUse(t, m) })

	t.Run("reset", func(t *testing.T) {
		// People's files stay, with their directories. reset names these.
		out := m.Run("/opt/berth", "node", "reset", "--yes")
		for _, own := range []string{"/etc/systemd/system/berth.service.d/99-own.conf", "/etc/berth/certs.d/own.example/hosts.toml"} {
			m.Run("test", "-e", own)
		}
		for _, dir := range []string{"/etc/systemd/system/berth.service.d", "/etc/berth/certs.d"} {
			if dir == "/etc/berth/certs.d" && !strings.Contains(out, "left unchanged: dir "+dir+": ") {
				t.Errorf("reset does not say that %s stays:\n%s", dir, out)
			}
			m.Run("rm", "-r", dir)
		}
		m.IsAs(before, "a reset after drift")
	})
}

// holdLock holds the lock of dpkg's front ends until it is killed.
const holdLock = `use Fcntl; open F, "+<", "/var/lib/dpkg/lock-frontend" or die $!;
my $lock = pack("s s l! l! i", F_WRLCK, 0, 0, 0, 0); fcntl(F, F_SETLK, $lock) or die $!;
print "$$\n"; close STDOUT; sleep 600;`

// packagesInUse simulates another user of the package manager. apply names that process, fails
// after its patience, and continues when the other has ended.
func packagesInUse(t *testing.T, m *systemd.Machine) {
	m.Run("dpkg", "-r", "socat")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	holder := m.Command(ctx, "perl", "-e", holdLock)
	said, err := holder.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := holder.Start(); err != nil {
		t.Fatal(err)
	}
	pid, err := bufio.NewReader(said).ReadString('\n')
	pid = strings.TrimSpace(pid)
	if err != nil {
		t.Fatalf("nobody holds the lock: %v", err)
	}
	begin := time.Now()
	out, err := m.Try("/opt/berth", "node", "apply", "--yes", "--package-wait", "1s")
	for _, want := range []string{"/var/lib/dpkg/lock-frontend is locked by process", "(perl -e", "for more than 1s"} {
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("apply says %v, and not %q:\n%s", err, want, out)
		}
	}
	if took := time.Since(begin); took > 2*time.Minute {
		t.Errorf("apply gave up after %s, want 1s", took)
	}
	waiting := m.Command(ctx, "/opt/berth", "node", "apply", "--yes")
	progress, err := waiting.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := waiting.Start(); err != nil {
		t.Fatal(err)
	}
	named := false
	for lines := bufio.NewScanner(progress); lines.Scan(); {
		if !named && strings.Contains(lines.Text(), "waiting: /var/lib/dpkg/lock-frontend is locked by process "+pid) {
			named = true
			changedAlready(t, m)
			m.Run("kill", pid)
		}
	}
	if err := waiting.Wait(); err != nil || !named {
		t.Errorf("apply ended with %v; named the process that it waits for: %t", err, named)
	}
	if err := holder.Wait(); err == nil {
		t.Error("the lock's holder was not killed")
	}
	m.Run("/opt/berth", "node", "diff")
}

// changedAlready checks that a second apply reports the running one: its process, its command, and
// its start.
func changedAlready(t *testing.T, m *systemd.Machine) {
	t.Helper()
	who := regexp.MustCompile(`the node is being changed by process \d+ \(/opt/berth node apply --yes\) since \d{4}-\d\d-\d\d \d\d:\d\d:\d\d`)
	for _, second := range []string{"apply", "reset"} {
		if out, err := m.Try("/opt/berth", "node", second, "--yes"); err == nil || !who.MatchString(out) {
			t.Errorf("a second %s ends with %v, and does not say who changes the node:\n%s", second, err, out)
		}
	}
	if out := m.Run("/opt/berth", "node", "status"); !who.MatchString(out) {
		t.Errorf("status does not say who changes the node:\n%s", out)
	}
}

// assetsThatFail applies with an asset whose server is down but has a mirror, and with an asset
// whose content does not match its hash. The latter changes nothing.
func assetsThatFail(t *testing.T, m *systemd.Machine) {
	file := func(path, sources, digest string) string {
		return strings.Replace(manyThings, "files:\n", "files:\n- {path: "+path+", source: {"+sources+", digest: \"sha256:"+digest+"\"}}\n", 1)
	}
	m.Describe(file("/etc/own/mirrored", `source: "http://127.0.0.1:1/x", mirrors: [/opt/hello-image.tar]`, "@HELLO@"))
	m.Run("/opt/berth", "node", "apply", "--yes")
	m.Run("cmp", "/opt/hello-image.tar", "/etc/own/mirrored")

	wrong := strings.Repeat("0", 64)
	m.Describe(file("/etc/own/wrong", "source: /opt/berth", wrong))
	m.Run("rm", "/etc/crictl.yaml")
	out, err := m.Try("/opt/berth", "node", "apply", "--yes")
	sum := strings.Fields(m.Run("sha256sum", "/opt/berth"))[0]
	for _, want := range []string{"nothing was changed", "/opt/berth", "sha256:" + wrong, "sha256:" + sum} {
		if err == nil || !strings.Contains(out, want) {
			t.Errorf("apply says %v, and not %q:\n%s", err, want, out)
		}
	}
	m.Run("sh", "-c", "test ! -e /etc/own/wrong && test ! -e /etc/crictl.yaml")
	m.Describe(manyThings)
	m.Run("/opt/berth", "node", "apply", "--yes", "--prune")
	m.Run("/opt/berth", "node", "diff")
}
