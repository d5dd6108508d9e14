package faults

import "github.com/berthrun/berth/internal/finding"

const toml = "/etc/berth/berth.toml"

// files is a machine whose berth cannot start, for many reasons.
func files() Machine {
	return Machine{
		Name: "Files", About: "a berth that has not started, with faults in its files", Doctor: doctor,
		Faults: append(configFaults(), recordFaults()...),
		Means: []string{
			"berth-config " + toml, // a file that is missing is a fault of the configuration as well
			"runtime CRI socket",   // the socket is another one
		},
	}
}

func configFaults() []Fault {
	return []Fault{
		{
			"a key that berth does not know", `conf network 'modus = "builtin"'`,
			"berth-config", finding.Problem, toml, "modus", "berth config check", false,
		},
		{
			"a socket whose path is too long", `sed -i "s#/run/berth.sock#/run/$(printf 'x%.0s' $(seq 120))#" conf/_; conf "" ""`,
			"berth-config", finding.Problem, toml, "a socket path has at most 107 bytes", "berth config check", false,
		},
		{
			"a program that is missing", `conf runtime 'supervisor = "/no/such/supervisor"'`,
			"berth-programs", finding.Problem, "/no/such/supervisor", "which is not there: berth does not start", "correct runtime.supervisor", false,
		},
		{
			"a seccomp profile that is missing", `conf runtime 'seccomp_profile = "/no/such/seccomp.json"'`,
			"kubelet-seccomp", finding.Warning, "/no/such/seccomp.json", "which is not there: containers with runtime/default do not start", "put the profile there", false,
		},
		{
			"an OCI hook with a fault", `conf runtime 'hooks_dirs = ["/etc/berth/hooks"]'
put /etc/berth/hooks/bad.json <<< '{"version": "1.0.0", "hook": {"path": "/bin/true"}, "when": {"always": true}, "stages": ["later"]}'`,
			"berth-config", finding.Problem, toml, "runtime.hooks_dirs", "correct the file", false,
		},
		{
			"a certificate that is missing", `conf page 'listen = "127.0.0.1:7001"'; conf page 'tls_cert_file = "/no/such/page.crt"'; conf page 'tls_key_file = "/no/such/page.key"'`,
			"berth-config", finding.Problem, toml, "/no/such/page.crt", "correct the file", false,
		},
		{
			"a certificate that is empty", `conf metrics 'listen = "127.0.0.1:7002"'; conf metrics 'tls_cert_file = "/dev/null"'; conf metrics 'tls_key_file = "/dev/null"'`,
			"berth-config", finding.Problem, toml, "metrics.tls_cert_file: ", "correct the file", false,
		},
		{
			"a limit of what containers write, on a disk without quotas", `conf defaults 'writable_limit = 1073741824'`,
			"image-store", finding.Problem, "%T/root", "defaults.writable_limit is 1073741824, and no pod with such a limit starts", "project quotas", false,
		},
		{
			"a registry's file that is not TOML", `put /etc/berth/certs.d/one.example/hosts.toml <<< 'server = '`,
			"registries", finding.Problem, "/etc/berth/certs.d/one.example/hosts.toml", "is not TOML", "correct it", false,
		},
		{
			"a registry's certificate that is missing", `put /etc/berth/certs.d/two.example/hosts.toml <<< 'ca = "ca.crt"'`,
			"registries", finding.Problem, "/etc/berth/certs.d/two.example/hosts.toml", "two.example/ca.crt, which is not there", "put the file there", false,
		},
		{
			"a directory in the place of a registry's file", `put /etc/berth/certs.d/four.example/hosts.toml/a < /dev/null`,
			"registries", finding.Problem, "/etc/berth/certs.d/four.example/hosts.toml", "cannot be read: ", "make it a file", false,
		},
		{
			"a file in the place of a registry's directory", `put /etc/berth/certs.d/five.example < /dev/null`,
			"registries", finding.Problem, "/etc/berth/certs.d/five.example", "is a file, and not a directory with a hosts.toml: images of five.example are not pulled", "remove it", false,
		},
		{
			"credentials that are not JSON", `put /etc/berth/auth.json <<< '{'; conf image 'credential_files = ["/etc/berth/auth.json"]'`,
			"berth-config", finding.Problem, toml, "image.credential_files: no image can be pulled: ", "correct the file with the credentials", false,
		},
		{
			"a mirror that is down", `put /etc/berth/certs.d/three.example/hosts.toml <<< '[host."http://127.0.0.1:1"]'`,
			"registry-hosts", finding.Warning, "/etc/berth/certs.d/three.example/hosts.toml", "no connection can be made to 127.0.0.1:1: ", "start it, or remove it", false,
		},
	}
}

func recordFaults() []Fault {
	return []Fault{
		{
			"records that an earlier start could not read", `put root/pods/quarantine/a.json <<< '{'`,
			"records", finding.Warning, "%T/root/pods/quarantine", "could not read are in %T/root/pods/quarantine: a.json", "remove the directory", false,
		},
		{
			"a database of images that an earlier start could not read", `put root/images/quarantine/20260101/metadata.db <<< x`,
			"records", finding.Warning, "%T/root/images/quarantine", "20260101", "remove the directory", false,
		},
		{
			"a record that was cut off", `put state/pods/sandboxes/a1.json <<< '{"version":1,'`,
			"records", finding.Problem, "%T/state/pods/sandboxes/a1.json", "the record of sandbox a1 cannot be read", "berth pod rm --force a1", false,
		},
		{
			"a record of a later berth", `put state/pods/containers/b2.json <<< '{"version":99}'`,
			"records", finding.Problem, "%T/state/pods/containers/b2.json", "has version 99", "berth container rm --force b2", false,
		},
		{
			"an empty record of a network", `put state/network/attachments/a1.json < /dev/null`,
			"records", finding.Problem, "%T/state/network/attachments/a1.json", "the record of the network of sandbox a1", "delete the pod", false,
		},
		{
			"a sandbox without its network namespace", ready(`"netns":"/run/netns/berth-e5"`),
			"records", finding.Problem, "/run/netns/berth-e5", "its network namespace /run/netns/berth-e5 is gone", "berth pod stop e5", false,
		},
		{
			"a sandbox without its cgroup", readyAs("f6", `"cgroupParent":"/no-such-cgroup"`),
			"records", finding.Problem, "/no-such-cgroup", "its cgroup /no-such-cgroup is gone", "berth pod stop f6", false,
		},
	}
}

func ready(engine string) string { return readyAs("e5", engine) }

// readyAs plants the record of a sandbox that is ready.
func readyAs(id, engine string) string {
	return `put state/pods/sandboxes/` + id + `.json <<< '{"version":1,"id":"` + id + `","record":{"id":"` + id + `","state":"ready","config":{"metadata":{"name":"p"}},"engine":{` + engine + `}}}'`
}

// kubelets is a machine whose kubelet does not start, for many reasons.
func kubelets() Machine {
	const config = "/var/lib/kubelet/config.yaml"
	return Machine{
		Name: "Kubelet", About: "a node whose kubelet does not start", Doctor: doctor,
		Setup: "conf network 'mode = \"builtin\"'\nconf network 'subnets = [\"10.2.0.0/25\"]'",
		// These depend on the machine.
		Means: []string{"modules br_netfilter", "kubelet-max-pods fs.inotify.max_user_instances"},
		Faults: []Fault{
			{
				"a kubelet whose program is missing", `put /etc/systemd/system/kubelet.service <<< $'[Service]\nExecStart=/no/such/kubelet --config=/var/lib/kubelet/config.yaml'`,
				"kubelet", finding.Problem, "/no/such/kubelet", "kubelet.service starts /no/such/kubelet, which is not there", "install the kubelet", false,
			},
			{
				"a kubelet of a runtime that does not run", `kube 'containerRuntimeEndpoint: unix:///run/nobody.sock'`,
				"kubelet-runtime", finding.Problem, "/run/nobody.sock", "where no runtime answers", "containerRuntimeEndpoint", false,
			},
			{
				"a kubelet that pulls images elsewhere", `kube 'imageServiceEndpoint: unix:///run/other.sock'`,
				"kubelet-images", finding.Problem, "imageServiceEndpoint", "pulls images through unix:///run/other.sock", "remove imageServiceEndpoint", false,
			},
			{
				"a pod that may have all processes", `kube 'podPidsLimit: 9000000'`,
				"kubelet-max-pods", finding.Warning, "podPidsLimit", "podPidsLimit is 9000000", "a lower podPidsLimit", false,
			},
			{
				"more pods than processes", `kube 'maxPods: 300'; value /proc/sys/kernel/pid_max 32768`,
				"kubelet-max-pods", finding.Warning, "kernel.pid_max", "up to 300 pods (maxPods), and kernel.pid_max is 32768", "sysctl -w kernel.pid_max=4194304", false,
			},
			{
				"no eviction before the disk is full", `kube 'evictionHard: {nodefs.available: 0Mi}'`,
				"kubelet-eviction", finding.Warning, "nodefs.available", "has no limit for nodefs.available", `nodefs.available: "10%"`, false,
			},
			{
				"name servers in a file that is missing", `kube 'resolvConf: /no/such/resolv.conf'`,
				"name-resolution", finding.Problem, "/no/such/resolv.conf", "which is not there", "correct resolvConf", false,
			},
			{
				"different ranges of ids", `put /etc/subuid <<< kubelet:65536:7208960; put /etc/subgid <<< kubelet:131072:7208960`,
				"kubelet-userns", finding.Problem, "/etc/subuid", "the same one range", "in both files", false,
			},
			{
				"sysctls that the kubelet demands", `kube 'protectKernelDefaults: true'; for key in vm/panic_on_oom:0 kernel/panic:10 kernel/panic_on_oops:1 kernel/keys/root_maxkeys:1000000 kernel/keys/root_maxbytes:25000000; do value /proc/sys/${key%:*} ${key#*:}; done; value /proc/sys/vm/overcommit_memory 0`,
				"kubelet-sysctls", finding.Problem, "vm.overcommit_memory", "protectKernelDefaults (" + config + ") demands 1", "sysctl -w vm.overcommit_memory=1", false,
			},
			{
				"swap", `value /proc/swaps "$(printf 'Filename Type Size Used Priority\n/swapfile file 1048572 0 -2')"`,
				"swap", finding.Problem, "/swapfile", "swap is on (/swapfile)", "failSwapOn", false,
			},
		},
	}
}
