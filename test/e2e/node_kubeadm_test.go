//go:build e2e

package e2e

import (
	"encoding/json"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/berthrun/berth/test/systemd"
)

// kubeadmNode is a machine prepared for kubeadm, with its programs.
const kubeadmNode = `
apiVersion: berth.run/v1alpha1
kind: Node
runtime: {name: berth}
network: {mode: builtin}
kernel: {defaultSysctls: false}
kubelet: {kubeadm: true}
`

// TestKubeadmPreflight compares the findings of doctor with those of kubeadm, on a machine that
// apply has prepared, and on the same machine in a bad state.
func TestKubeadmPreflight(t *testing.T) {
	kubelet := os.Getenv("KUBELET")
	if kubelet == "" {
		t.Fatal("KUBELET is not set: run `make e2e`, or test/kube/build.sh and set it to the kubelet")
	}
	m := systemd.BootNode(t, map[string]string{
		"/usr/bin/kubelet": kubelet, "/usr/bin/kubeadm": filepath.Join(filepath.Dir(kubelet), "kubeadm"),
	})
	m.Describe(kubeadmNode)
	if out := m.Run("/opt/berth", "node", "apply", "--yes"); !strings.Contains(out, "kubeadm's preflight checks") {
		t.Errorf("apply does not report what is left for kubeadm:\n%s", out)
	}
	compare := func(t *testing.T) (errors, warnings map[string]bool) {
		t.Helper()
		errors, warnings = saidByKubeadm(t, m)
		ours := saidByDoctor(t, m)
		t.Logf("kubeadm: errors %v, warnings %v; doctor: %v", errors, warnings, ours)
		for name := range errors {
			if ours[name] == "" {
				t.Errorf("kubeadm refuses for %s, and doctor does not say so", name)
			}
		}
		for name, evidence := range ours {
			if (strings.HasSuffix(evidence, "kubeadm init and join refuse") || strings.HasSuffix(evidence, "kubeadm init refuses")) && !errors[name] {
				t.Errorf("doctor says that kubeadm refuses for %s, and it does not: %s", name, evidence)
			}
		}
		for _, name := range []string{"Hostname", "Swap", "Service-kubelet", "Firewalld"} {
			if warnings[name] != (ours[name] != "") {
				t.Errorf("kubeadm warns of %s: %v; doctor: %q", name, warnings[name], ours[name])
			}
		}
		return errors, warnings
	}
	t.Run("made ready", func(t *testing.T) {
		for name := range first(compare(t)) {
			if name != "SystemVerification" && name != "Mem" { // this host's kernel and size
				t.Errorf("kubeadm refuses for %s", name)
			}
		}
	})
	t.Run("spoilt", func(t *testing.T) {
		m.Run("rm", "/sbin/losetup")
		m.Run("systemctl", "disable", "kubelet.service")
		m.Run("mkdir", "-p", "/var/lib/etcd/member", "/etc/kubernetes/manifests")
		m.Write("/etc/kubernetes/manifests/etcd.yaml", "")
		m.Run("systemd-run", "--unit=listener", "--socket-property=ListenStream=10250", "cat")
		m.Run("sh", "-c", "echo 0 > /proc/sys/net/ipv4/ip_forward")
		errors, warnings := compare(t)
		for _, name := range []string{"FileExisting-losetup", "Port-10250", "DirAvailable--var-lib-etcd", "FileAvailable--etc-kubernetes-manifests-etcd.yaml", "FileContent--proc-sys-net-ipv4-ip_forward"} {
			if !errors[name] {
				t.Errorf("kubeadm does not refuse for %s", name)
			}
		}
		if !warnings["Service-kubelet"] {
			t.Error("kubeadm does not warn of the kubelet's unit")
		}
	})
}

func first(a, _ map[string]bool) map[string]bool { return a }

// saidByKubeadm runs kubeadm's own checks and reads their names.
func saidByKubeadm(t *testing.T, m *systemd.Machine) (errors, warnings map[string]bool) {
	m.Write("/etc/kubeadm.yaml", "apiVersion: kubeadm.k8s.io/v1beta4\nkind: InitConfiguration\nlocalAPIEndpoint: {advertiseAddress: 192.0.2.10}\nnodeRegistration: {criSocket: \"unix:///run/berth/berth.sock\"}\n"+
		"---\napiVersion: kubeadm.k8s.io/v1beta4\nkind: ClusterConfiguration\nkubernetesVersion: v1.36.3\n")
	out, _ := m.Try("kubeadm", "init", "phase", "preflight", "--config", "/etc/kubeadm.yaml", "--ignore-preflight-errors=ImagePull")
	errors, warnings = map[string]bool{}, map[string]bool{}
	if !strings.Contains(out, "[preflight]") {
		t.Fatalf("kubeadm has checked nothing:\n%s", out)
	}
	for _, match := range regexp.MustCompile(`\[(ERROR|WARNING) ([^\]]+)\]`).FindAllStringSubmatch(out, -1) {
		map[string]map[string]bool{"ERROR": errors, "WARNING": warnings}[match[1]][match[2]] = true
	}
	return errors, warnings
}

// saidByDoctor are the findings with kubeadm's names.
func saidByDoctor(t *testing.T, m *systemd.Machine) map[string]string {
	t.Helper()
	out, _ := m.Try("/opt/berth", "node", "doctor", "-o", "json")
	var findings []struct{ Check, Level, Evidence string }
	if err := json.Unmarshal([]byte(out), &findings); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	said := map[string]string{}
	for _, f := range findings {
		if name, ok := strings.CutPrefix(f.Check, "kubeadm "); ok && name != "CRI" { // kubeadm had it as an argument
			said[name] = f.Evidence
		}
	}
	return said
}
