package start

// row is what the test knows of a command of a page, besides its text. The command is its first line,
// without the comment behind it.
type row struct {
	page, command string
	// first is typed before the command, instead in its place, and then after it. why is the reason.
	first, instead, then, why string
	// asks is the question of the command. The answer is y.
	asks string
	// ready is what a command prints that stays in the foreground, when it does what the page says.
	// The next commands are those of a second terminal. Before the command until, Ctrl-C is pressed.
	ready, until string
	// prints is a regular expression for the output.
	prints string
}

// table has a row for each command that a test machine cannot run as it is, that asks, that stays
// in the foreground, or whose output shows where the page leads.
func table() []row {
	const (
		internet = "a test machine has no internet"
		clone    = "git clone https://github.com/berthrun/berth"
		kubectl  = `curl -fLo /usr/local/bin/kubectl "https://dl.k8s.io/release/v1.36.3/bin/linux/$(dpkg --print-architecture)/kubectl"`
		kube     = `curl -fL --remote-name-all --output-dir /usr/local/bin "$release"/{kubeadm,kubelet,kubectl}`
		golang   = `curl -fL "https://go.dev/dl/go1.26.6.linux-$(dpkg --print-architecture).tar.gz" | tar -xz -C /usr/local`
	)
	return []row{
		{page: "pod", command: golang, instead: "ln -s /opt/go /usr/local/go", why: internet + ": this is the Go of the test's host"},
		{page: "pod", command: clone, instead: "git clone --quiet /opt/berth.bundle berth", why: internet + ": this is the commit that is tested"},
		{page: "pod", command: "make install", prints: `install .*/usr/local/bin/berth\b`},
		{page: "pod", command: "berth info", prints: `NetworkReady: +yes`},
		{page: "pod", command: "berth pod run -f examples/hello-pod.yaml", ready: "pod default/hello is ready", until: "berth pod rm hello"},
		{page: "pod", command: "berth pod ls", prints: `default/hello +ready +2/2`},
		{page: "pod", command: "curl http://127.0.0.1:18080/", prints: `hello from berth, pod hello`},
		{page: "pod", command: "berth pod logs hello -c visitor", prints: `hello from berth, pod hello`},
		{page: "pod", command: "berth pod exec hello -c web -- ps", prints: `1 serve --listen :8080`},
		{page: "pod", command: "berth pod stats hello", prints: `default/hello +web +[0-9]`},

		{page: "cluster", command: kubectl, instead: "cp /opt/kube/kubectl /usr/local/bin/kubectl", why: internet + ": this is Kubernetes built from its Go module"},
		{
			page: "cluster", command: "berth cluster build-image --kubernetes v1.36.3",
			instead: "berth cluster build-image --kubernetes /opt/kube --rootfs /opt/rootfs", why: internet + ": docs/howto/air-gap.md has this command",
		},
		{page: "cluster", command: "kubectl get nodes", prints: `dev-control-plane +Ready `},
		{page: "cluster", command: "kubectl rollout status deployment web", prints: `successfully rolled out`},
		{page: "cluster", command: "kubectl port-forward service/web 8080:80", ready: "Forwarding from 127.0.0.1:8080", until: "berth cluster delete dev"},
		{page: "cluster", command: "curl http://127.0.0.1:8080/", prints: `hello from berth, pod web-`},
		{
			page: "cluster", command: "berth cluster delete dev",
			first: `berth pod exec berth-cluster/dev-control-plane -- sh -c 'berth image save -o /var/kube.tar $(berth image ls | grep -o "^registry.k8s.io[^ ]*")'` + "\n" +
				"berth pod exec berth-cluster/dev-control-plane -- cat /var/kube.tar > /opt/shared/kube.tar",
			why: "kubeadm of the next page pulls these images",
		},

		{page: "node", command: kube, instead: "cp /opt/kube/{kubeadm,kubelet,kubectl} /usr/local/bin", why: internet + ": this is Kubernetes built from its Go module"},
		{
			page: "node", command: "cat > /etc/berth/node.yaml << 'END'", then: `sed -i 's/^kernel: .*/kernel: {swap: "off", defaultSysctls: false, sysctls: {net.ipv4.ip_forward: "1"}}/' /etc/berth/node.yaml`,
			why: "a container may not change settings of its host's kernel",
		},
		{page: "node", command: "berth node apply", asks: "[y/N] ", prints: `Entry 1 of the history: ok`},
		{
			page: "node", command: "kubeadm init --config init.yaml",
			first: "berth image import /opt/shared/kube.tar bin/hello-image.tar\n" +
				"berth image tag berth.run/hello:demo $(kubeadm config images list 2> /dev/null | grep /pause:)\n" +
				`printf -- '---\napiVersion: kubeproxy.config.k8s.io/v1alpha1\nkind: KubeProxyConfiguration\nconntrack: {maxPerCore: 0}\n' >> init.yaml`,
			why:    internet + ": these are the images that kubeadm pulls (it needs a pause image, and berth runs none); and a container may not change the table of connections of its host's kernel",
			prints: `initialized successfully`,
		},
		{page: "node", command: "kubectl wait --for=condition=Ready node --all --timeout 2m", prints: `node/plane condition met`},
		{page: "node", command: "kubectl rollout status deployment web", prints: `successfully rolled out`},
		{page: "node", command: "kubectl exec deployment/web -- get http://localhost:8080/", prints: `hello from berth, pod web-`},
		{
			page: "node", command: "kubeadm join --config join.yaml", first: "berth image import /opt/shared/kube.tar",
			why: internet + ": kube-proxy's image is among these", prints: `This node has joined the cluster`,
		},
		{page: "node", command: "berth node diff", prints: `Nothing to change`},
		{page: "node", command: "kubeadm reset --cri-socket unix:///run/berth/berth.sock", asks: "[y/N]: "},
		{page: "node", command: "berth node reset", asks: "[y/N] ", prints: `done +reset`},
	}
}
