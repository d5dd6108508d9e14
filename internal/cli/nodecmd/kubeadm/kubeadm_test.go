package kubeadm

import (
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/require"
)

// TestKubeadmFile: only the owner can read the file with the token, even if a file with wider
// permissions existed before. If the command reads the token from standard input, the token is on
// no command line.
func TestKubeadmFile(t *testing.T) {
	require.Root(t)
	const token = "abcdef.0123456789abcdef"
	root := t.TempDir()
	for file, text := range map[string]string{
		"etc/os-release":      "ID=debian\nVERSION_ID=12\n",
		"etc/berth/node.yaml": "apiVersion: berth.run/v1alpha1\nkind: Node\nruntime: {name: crio}\nkubelet: {kubeadm: true}\n",
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, file)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, file), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	out := filepath.Join(t.TempDir(), "join.yaml")
	if err := os.WriteFile(out, nil, 0o644); err != nil { //nolint:gosec // which the command must not keep
		t.Fatal(err)
	}
	run := func(stdin string, args ...string) (stdout, stderr string, err error) {
		var printed, said bytes.Buffer
		cmd := New()
		cmd.SetArgs(args)
		cmd.SetIn(strings.NewReader(stdin))
		cmd.SetOut(&printed)
		cmd.SetErr(&said)
		cmd.SilenceUsage, cmd.SilenceErrors = true, true
		err = cmd.Execute()
		return printed.String(), said.String(), err
	}
	joins := []string{"join", "192.0.2.10:6443", "--root", root, "--token-file", "-", "--discovery-token-unsafe-skip-ca-verification", "--node-name", "n7"}
	stdout, stderr, err := run(token+"\n", append(joins, "--out", out)...)
	if err != nil {
		t.Fatal(err)
	}
	if stdout != "" || strings.Contains(stderr, token) || !strings.Contains(stderr, "kubeadm join --config "+out) {
		t.Errorf("stdout %q, stderr %q; want no token, and the next command", stdout, stderr)
	}
	info, err := os.Stat(out)
	if err != nil {
		t.Fatal(err)
	}
	if got := info.Mode(); got != fs.FileMode(0o600) {
		t.Errorf("mode %v, want 0600", got)
	}
	text, err := os.ReadFile(out)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"token: " + token, "criSocket: unix:///var/run/crio/crio.sock", "name: n7"} {
		if !strings.Contains(string(text), want) {
			t.Errorf("the configuration has no %q:\n%s", want, text)
		}
	}
	if stdout, _, err := run(token, joins...); err != nil || stdout != string(text) {
		t.Errorf("standard output: %v, want what the file has:\n%s", err, stdout)
	}
	if _, _, err := run("hunter2", joins...); err == nil || strings.Contains(err.Error(), "hunter2") {
		t.Errorf("a bad token: %v, want an error without it", err)
	}
	if stdout, _, err := run("", "init", "--root", root, "--kubernetes-version", "v1.36.3"); err != nil || !strings.Contains(stdout, "kubernetesVersion: v1.36.3") {
		t.Errorf("init: %v\n%s", err, stdout)
	}
}
