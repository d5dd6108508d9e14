package start

import (
	"os"
	"path/filepath"
	"regexp"
	"testing"

	"github.com/berthrun/berth/test/docs/markdown"
	"github.com/berthrun/berth/test/docs/scripts"
)

const repository = "../.."

func pageNames() []string { return []string{"pod", "cluster", "node"} }

func file(page string) string { return "docs/start/" + page + ".md" }

// table has a row for each command of a page that a test machine cannot run as it is, that asks, that
// stays in the foreground, or whose output shows where the page leads.
func table(page string) []scripts.Row {
	const (
		internet = "a test machine has no internet"
		remove   = "berth cluster delete dev"
		initial  = "kubeadm init --config init.yaml"
		join     = "kubeadm join --config join.yaml"
	)
	return map[string][]scripts.Row{
		"pod": {
			{
				Line: `curl -fL "https://go.dev/dl/go1.26.6.linux-$(dpkg --print-architecture).tar.gz" | tar -xz -C /usr/local`,
				Run:  "ln -s /opt/go /usr/local/go", Why: internet + ": this is the Go of the test's host",
			},
			{
				Line: "git clone https://github.com/berthrun/berth",
				Run:  "git clone --quiet /opt/berth.bundle berth", Why: internet + ": this is the commit that is tested",
			},
			{Line: "make install", Prints: `install .*/usr/local/bin/berth\b`},
			{Line: "berth info", Prints: `NetworkReady: +yes`},
			{Line: "berth pod run -f examples/hello-pod.yaml", Ready: "pod default/hello is ready", Until: "berth pod rm hello"},
			{Line: "berth pod ls", Prints: `default/hello +ready +2/2`},
			{Line: "curl http://127.0.0.1:18080/", Prints: `hello from berth, pod hello`},
			{Line: "berth pod logs hello -c visitor", Prints: `hello from berth, pod hello`},
			{Line: "berth pod exec hello -c web -- ps", Prints: `1 serve --listen :8080`},
			{Line: "berth pod stats hello", Prints: `(?m)^(default/hello)? +web +[0-9]`},
		},
		"cluster": {
			{
				Line: `curl -fLo /usr/local/bin/kubectl "https://dl.k8s.io/release/v1.36.3/bin/linux/$(dpkg --print-architecture)/kubectl"`,
				Run:  "cp /opt/kube/kubectl /usr/local/bin/kubectl", Why: internet + ": this is Kubernetes built from its Go module",
			},
			{
				Line: "berth cluster build-image --kubernetes v1.36.3",
				Run:  "berth cluster build-image --kubernetes /opt/kube --rootfs /opt/rootfs", Why: internet + ": docs/howto/air-gap.md has this command",
			},
			{Line: "kubectl get nodes", Prints: `dev-control-plane +Ready `},
			{Line: "kubectl rollout status deployment web", Prints: `successfully rolled out`},
			{Line: "kubectl port-forward service/web 8080:80", Ready: "Forwarding from 127.0.0.1:8080", Until: remove},
			{Line: "curl http://127.0.0.1:8080/", Prints: `hello from berth, pod web-`},
			{
				Line: remove,
				Run: `berth pod exec berth-cluster/dev-control-plane -- sh -c 'berth image save -o /var/kube.tar $(berth image ls | grep -o "^registry.k8s.io[^ ]*")' &&` + "\n" +
					"berth pod exec berth-cluster/dev-control-plane -- cat /var/kube.tar > /opt/shared/kube.tar &&\n" + remove,
				Why: "kubeadm of the next page pulls these images",
			},
		},
		"node": {
			{
				Line: `curl -fL --remote-name-all --output-dir /usr/local/bin "$release"/{kubeadm,kubelet,kubectl}`,
				Run:  "cp /opt/kube/{kubeadm,kubelet,kubectl} /usr/local/bin", Why: internet + ": this is Kubernetes built from its Go module",
			},
			{
				Line: "berth node validate",
				Run:  `sed -i 's/^kernel: .*/kernel: {swap: "off", defaultSysctls: false, sysctls: {net.ipv4.ip_forward: "1"}}/' /etc/berth/node.yaml && berth node validate`,
				Why:  "a container may not change settings of its host's kernel",
			},
			{Line: "berth node apply", Prints: `(?s)\[y/N\] .*Entry 1 of the history: ok`},
			{
				Line: initial,
				Run: "berth image import /opt/shared/kube.tar bin/hello-image.tar &&\n" +
					"berth image tag berth.run/hello:demo $(kubeadm config images list 2> /dev/null | grep /pause:) &&\n" +
					`printf -- '---\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nconntrack: {maxPerCore: 0}\n' >> init.yaml &&` + "\n" + initial,
				Why:    internet + ": these are the images that kubeadm pulls (it needs a pause image, and berth runs none); and a container may not change the table of connections of its host's kernel",
				Prints: `initialized successfully`,
			},
			{Line: "kubectl wait --for=condition=Ready node --all --timeout 2m", Prints: `node/plane condition met`},
			{Line: "kubectl rollout status deployment web", Prints: `successfully rolled out`},
			{Line: "kubectl exec deployment/web -- get http://localhost:8080/", Prints: `hello from berth, pod web-`},
			{
				Line: join, Run: "berth image import /opt/shared/kube.tar &&\n" + join,
				Why: internet + ": kube-proxy's image is among these", Prints: `This node has joined the cluster`,
			},
			{Line: "berth node diff", Prints: `Nothing to change`},
			{Line: "kubeadm reset --cri-socket unix:///run/berth/berth.sock", Prints: `\[y/N\]: `},
			{Line: "berth node reset", Prints: `(?s)\[y/N\] .*done +reset`},
		},
	}[page]
}

// TestTablesFit: each row is about a command of its page, and the page has nothing but commands.
func TestTablesFit(t *testing.T) {
	for _, name := range pageNames() {
		if all := scripts.Check(t, repository, file(name), table(name)); len(all) < 5 {
			t.Errorf("%s has %d commands: does the test read the page?", file(name), len(all))
		}
		page, err := markdown.Parse(file(name), read(t, file(name)))
		if err != nil {
			t.Fatal(err)
		}
		for _, block := range page.Blocks {
			if block.Lang() != "sh" {
				t.Errorf("%s: the block is not sh, and nothing here can follow it", block.Place())
			}
		}
	}
}

func read(t *testing.T, file string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(repository, file))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// TestVersions: the pages name the Go of go.mod, and the Kubernetes of the other tests.
func TestVersions(t *testing.T) {
	for from, versions := range map[string][2]string{
		"go.mod":             {`(?m)^go (.*)$`, `go\.dev/dl/go([0-9.]+)\.linux`},
		"test/kube/build.sh": {`KUBERNETES_VERSION:-(v[0-9.]+)`, `\b(v1\.[0-9]+\.[0-9]+)\b`},
	} {
		want := regexp.MustCompile(versions[0]).FindStringSubmatch(read(t, from))
		if want == nil {
			t.Fatalf("%s names no version", from)
		}
		names := 0
		for _, name := range pageNames() {
			for _, line := range scripts.Check(t, repository, file(name), nil) {
				for _, got := range regexp.MustCompile(versions[1]).FindAllStringSubmatch(line.Text, -1) {
					names++
					if got[1] != want[1] {
						t.Errorf("%s:%d: %s, and %s has %s", file(name), line.Number, got[1], from, want[1])
					}
				}
			}
		}
		if names == 0 {
			t.Errorf("the pages do not name the version of %s", from)
		}
	}
}
