//go:build integration

package integration

import (
	"strings"
	"testing"

	"github.com/berthrun/berth/test/systemd"
)

// TestNodeScript runs a rendered script on a machine: it makes what apply makes,
// starts what should run, and a second run restarts nothing.
func TestNodeScript(t *testing.T) {
	m := systemd.BootNode(t, nil)
	m.Describe(`
apiVersion: berth.run/v1alpha1
kind: Node
runtime: {name: berth}
network: {mode: builtin}
kernel: {defaultSysctls: false}
packages: {install: [conntrack]}
groups: [{name: ops, gid: 2000}]
users: [{name: ops, uid: 2000, group: ops, home: /home/ops, shell: /bin/sh}]
files:
- {path: /etc/own, type: directory, mode: "2775", group: ops}
- {path: /etc/own/file, content: "no newline", mode: "4750", owner: ops}
hooks: [{name: first, command: [/usr/bin/touch, "/etc/own/it ran"]}]
`)
	m.Run("install", "/opt/berth", "/opt/berth-supervisor", "/usr/local/bin")
	m.Run("berth", "node", "render", "--target", "script", "--distribution", "debian:12", "-o", "/opt/node.sh", systemd.NodeFile)
	m.Run("/opt/node.sh")
	m.Run("test", "-e", "/etc/own/it ran")
	// apply finds nothing to do after it.
	if out, err := m.Try("berth", "node", "diff"); err != nil {
		t.Errorf("the script makes something else than apply: %v\n%s", err, out)
	}
	since := func() string {
		t.Helper()
		return m.Run("systemctl", "show", "-p", "MainPID,ActiveEnterTimestampMonotonic", "berth.service", "berth-supervisor.service")
	}
	first := since()
	m.Run("/opt/node.sh")
	if second := since(); second != first {
		t.Errorf("a second run restarts:\n%swas\n%s", second, first)
	}

	m.Write(systemd.NodeFile, strings.Replace(m.Run("cat", systemd.NodeFile), "mode: builtin", "mode: cni", 1))
	m.Run("berth", "node", "render", "--target", "script", "--distribution", "debian:12", "-o", "/opt/node.sh", systemd.NodeFile)
	m.Run("/opt/node.sh")
	if third := since(); third == first {
		t.Errorf("another configuration restarts nothing:\n%s", third)
	}
	m.Run("berth", "node", "diff")
}
