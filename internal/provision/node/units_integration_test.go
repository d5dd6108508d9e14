//go:build integration

package node

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/provision/tasks"
	"github.com/berthrun/berth/internal/require"
)

// TestUnitsAreRead: systemd itself reads each generated unit without errors.
func TestUnitsAreRead(t *testing.T) {
	analyze := require.Binary(t, "systemd-analyze")
	texts := map[string]string{
		"full":    full("containerd", assets("containerd-2.4.2-linux-amd64.tar.gz", "runc.amd64")),
		"berth":   "runtime: {name: berth, runtimeCgroups: /runtime.slice}\nboot: {enabled: true, driftInterval: 90s}\n",
		"crio":    "runtime: {name: crio, assets: " + assets("cri-o.amd64.v1.36.3.tar.gz") + "}\n",
		"docker":  "runtime: {name: docker, version: \"28.5.1\", assets: " + assets("docker-28.5.1.tgz") + "}\n",
		"kubeadm": "runtime: {name: berth}\nkubelet: {kubeadm: true, assets: " + assets("kubelet") + "}\n",
	}
	// The programs are not installed. This systemd ignores directives that are newer than itself.
	wrong := regexp.MustCompile(`(?i)(unknown section|unknown key|invalid|failed to parse|missing '=')`)
	younger := regexp.MustCompile(`Unknown key '?(name )?'?FileDescriptorStorePreserve`)
	for name, text := range texts {
		f := factsOf(t, "debian 12")
		f.Credentials = map[string]string{"/etc/berth/hub.auth": "a:b"}
		target, err := Build(load(t, text), f)
		if err != nil {
			t.Fatal(err)
		}
		dir := t.TempDir()
		var units []string
		for _, task := range target.Tasks {
			unit, ok := task.(tasks.Unit)
			if !ok || unit.Content == "" {
				continue
			}
			path := filepath.Join(dir, unit.Name)
			if err := os.WriteFile(path, []byte(unit.Content), 0o644); err != nil {
				t.Fatal(err)
			}
			units = append(units, path)
		}
		// Its exit status also reports programs that are not installed.
		out, _ := exec.CommandContext(t.Context(), analyze, append([]string{"verify", "--man=no"}, units...)...).CombinedOutput()
		for line := range strings.Lines(string(out)) {
			if strings.Contains(line, dir) && wrong.MatchString(line) && !younger.MatchString(line) {
				t.Errorf("%s: %s", name, line)
			}
		}
	}
}
