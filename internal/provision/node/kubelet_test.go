package node

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/tasks"
)

// TestKubeletBinary: the unit starts the kubelet from the configured path.
func TestKubeletBinary(t *testing.T) {
	for _, dir := range []string{"/usr/bin", "/usr/local/bin"} {
		n := nodefile.Default()
		n.Kubelet.Kubeadm = true
		b := &builder{n: n, f: facts.Facts{KubeletBinary: dir + "/kubelet"}, rt: runtime{unit: "berth.service"}}
		for what, text := range map[string]string{"unit": b.kubeletUnit(), "drop-in": kubeadmDropIn(b.kubeletBinary())} {
			if !strings.Contains(text, "ExecStart="+dir+"/kubelet") {
				t.Errorf("the %s does not start %s/kubelet:\n%s", what, dir, text)
			}
		}
	}
}

// TestPlanWithAKubeletElsewhere: the complete path from the machine to its tasks.
func TestPlanWithAKubeletElsewhere(t *testing.T) {
	n := load(t, "runtime: {name: berth}\nkubelet: {kubeadm: true}\n")
	h := ofVersion(t, false)
	put(t, h, "/lib/systemd/systemd", "")
	if _, err := facts.Detect(t.Context(), h, n, "/usr/local/bin/berth", ""); !errors.Is(err, errs.NotFound) || !strings.Contains(err.Error(), "kubelet") {
		t.Errorf("without a kubelet: %v", err)
	}
	put(t, h, "/usr/local/bin/kubelet", "")
	f, err := facts.Detect(t.Context(), h, n, "/usr/local/bin/berth", "")
	if err != nil {
		t.Fatal(err)
	}
	target, err := Build(n, f)
	if err != nil {
		t.Fatal(err)
	}
	i := slices.IndexFunc(target.Tasks, func(task provision.Task) bool { return task.ID() == "unit "+kubeletUnit })
	unit := target.Tasks[i].(tasks.Unit)
	for _, text := range []string{unit.Content, unit.DropIns["10-kubeadm.conf"]} {
		if !strings.Contains(text, "ExecStart=/usr/local/bin/kubelet") || strings.Contains(text, "/usr/bin/") {
			t.Errorf("got\n%s", text)
		}
	}
}

// TestKubeletOnCgroupV1: since 1.35 a kubelet exits on cgroup v1 unless its configuration allows
// it. The node file takes precedence.
func TestKubeletOnCgroupV1(t *testing.T) {
	for _, c := range []struct {
		config string
		v1     bool
		want   string
	}{
		{"{maxPods: 50}", true, "failCgroupV1: false\n"},
		{"{failCgroupV1: true}", true, "failCgroupV1: true\n"},
		{"{maxPods: 50}", false, ""},
	} {
		f := factsOf(t, "debian 12")
		f.CgroupV1 = c.v1
		target, err := Build(load(t, "runtime: {name: berth}\nkubelet: {enabled: true, config: "+c.config+"}\n"), f)
		if err != nil {
			t.Fatal(err)
		}
		text := fileOf(t, target, kubeletConfig)
		if strings.Contains(text, "failCgroupV1") != (c.want != "") || !strings.Contains(text, c.want) {
			t.Errorf("%s with cgroup v1 %v: want %q:\n%s", c.config, c.v1, c.want, text)
		}
	}
	for _, v1 := range []bool{true, false} {
		h := ofVersion(t, v1)
		put(t, h, "/lib/systemd/systemd", "")
		f, err := facts.Detect(t.Context(), h, load(t, "runtime: {name: berth}\n"), "/usr/local/bin/berth", "")
		if err != nil {
			t.Fatal(err)
		}
		if f.CgroupV1 != v1 {
			t.Errorf("cgroup v1 is detected: %v, want %v", f.CgroupV1, v1)
		}
	}
}

// fileOf returns the content of a file in a target.
func fileOf(t *testing.T, target provision.Target, path string) string {
	t.Helper()
	for _, task := range target.Tasks {
		if f, ok := task.(tasks.File); ok && f.Path == path {
			return f.Content
		}
	}
	t.Fatalf("no task writes %s", path)
	return ""
}

// TestKubeletBeforeKubeadm: the kubelet is not started before kubeadm has written its
// configuration. This also holds for a second apply, which finds the unit of the first.
func TestKubeletBeforeKubeadm(t *testing.T) {
	n := load(t, "runtime: {name: berth}\nkubelet: {kubeadm: true}\n")
	h := ofVersion(t, false)
	put(t, h, "/lib/systemd/systemd", "")
	put(t, h, "/usr/bin/kubelet", "")
	put(t, h, "/etc/systemd/system/kubelet.service", "[Service]\nExecStart=/usr/bin/kubelet\n")
	put(t, h, "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf", kubeadmDropIn("/usr/bin/kubelet"))
	put(t, h, "/usr/local/bin/berth-supervisor", "")
	put(t, h, "/usr/local/bin/berth", "")
	for _, want := range []tasks.Running{tasks.Leave, tasks.Started} {
		f, err := facts.Detect(t.Context(), h, n, "/usr/local/bin/berth", "")
		if err != nil {
			t.Fatal(err)
		}
		target, err := Build(n, f)
		if err != nil {
			t.Fatal(err)
		}
		for _, task := range target.Tasks {
			if u, ok := task.(tasks.Unit); ok && u.Name == kubeletUnit && u.Running != want {
				t.Errorf("%s: %v, want %v", kubeletUnit, u.Running, want)
			}
		}
		put(t, h, kubeletConfig, "cgroupDriver: systemd\n") // as kubeadm does
	}
}
