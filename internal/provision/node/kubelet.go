package node

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/kubelet"
	"github.com/berthrun/berth/internal/provision/node/facts"
	"github.com/berthrun/berth/internal/provision/node/nodefile"
	"github.com/berthrun/berth/internal/provision/preflight"
	"github.com/berthrun/berth/internal/provision/tasks"
)

const (
	kubeletUnit   = kubelet.Unit
	kubeletConfig = kubelet.ConfigFile
	kubeletEnv    = facts.OwnDir + "/kubelet.env"
)

// kubelet installs and starts the kubelet, or leaves it to kubeadm. after are tasks
// that come before it starts: the end of a handover.
func (b *builder) kubelet(after []string) {
	k := &b.n.Kubelet
	if !k.Enabled && !k.Kubeadm {
		return
	}
	needs := append([]string{"unit " + b.rt.criUnit}, after...)
	for i, asset := range b.ofArch(k.Assets) {
		task := b.kubeletAsset(i, asset)
		b.add(task)
		needs = append(needs, task.ID())
	}
	env := b.proxy()
	env["KUBELET_OPTIONS"] = kubeletFlags(k.Flags)
	environment := tasks.File{
		M:    provision.Meta{Why: "kubelet.flags", Restarts: []string{kubeletUnit}},
		Path: kubeletEnv, Content: envFile(env), Mode: 0o600, Secret: len(env) > 1,
	}
	b.add(environment)
	needs = append(needs, environment.ID())
	if !k.Kubeadm {
		needs = append(needs, b.kubeletConfig(after)...)
	}
	yes := true
	unit := tasks.Unit{
		M:    provision.Meta{Why: "kubelet", Needs: append(needs, b.imageTasks()...)},
		Name: kubeletUnit, Content: b.kubeletUnit(), Enable: &yes, Running: tasks.Started,
	}
	if k.Kubeadm {
		if !b.f.Kubelet {
			unit.Running = tasks.Leave // the kubelet fails until kubeadm has written its configuration
		}
		unit.DropIns = map[string]string{"10-kubeadm.conf": kubeadmDropIn(b.kubeletBinary())}
		b.target.Advice = append(b.target.Advice, preflightProbe{})
	}
	b.add(unit)
}

// preflightProbe warns of what kubeadm would object to on the machine.
type preflightProbe struct{}

func (preflightProbe) Name() string { return "kubeadm's preflight checks" }

func (preflightProbe) Run(ctx context.Context, host provision.Host) error {
	for _, objection := range preflight.Look(ctx, host) {
		provision.Warn(ctx, "%s", objection)
	}
	return nil
}

func (b *builder) kubeletBinary() string {
	if len(b.n.Kubelet.Assets) > 0 || b.f.Distro.Immutable {
		return b.f.Distro.BinDir + "/kubelet"
	}
	return cmp.Or(b.f.KubeletBinary, "/usr/bin/kubelet")
}

func (b *builder) kubeletAsset(i int, asset nodefile.Asset) tasks.Asset {
	name := asset.Name
	if name == "" {
		name = asset.Source[strings.LastIndex(asset.Source, "/")+1:]
	}
	pick := tasks.Pick{
		What:    "binaries of Kubernetes",
		Layouts: [][]string{{"kubernetes/node/bin/*"}, {"kubernetes/server/bin/kubelet", "kubernetes/server/bin/kubeadm", "kubernetes/server/bin/kubectl"}, {"bin/*"}, {"*"}},
		Except:  append(notBinaries(), "*.tar", "*.docker_tag"), Dir: b.f.Distro.BinDir, Min: 1,
	}
	if asset.Name != "" {
		pick.As, pick.Max = asset.Name, 1
	}
	return tasks.Asset{
		M:    provision.Meta{Why: fmt.Sprintf("kubelet.assets[%d]", i), Restarts: []string{kubeletUnit}, Needs: slices.Clone(b.installed)},
		Ref:  assetRef(name, asset),
		Pick: []tasks.Pick{pick},
	}
}

// kubeletConfig writes the configuration and the directory of static pods.
func (b *builder) kubeletConfig(after []string) []string {
	k := &b.n.Kubelet
	driver := "systemd"
	if !b.systemdCgroup() {
		driver = "cgroupfs"
	}
	config := map[string]any{
		"apiVersion": "kubelet.config.k8s.io/v1beta1", "kind": "KubeletConfiguration",
		"cgroupDriver": driver, "staticPodPath": k.ManifestsDir,
		"rotateCertificates": true,
	}
	if b.rt.socket != "" {
		config["containerRuntimeEndpoint"] = "unix://" + b.rt.socket
	}
	if len(b.n.Network.PodCIDRs) > 0 && k.Kubeconfig == "" {
		config["podCIDR"] = strings.Join(b.n.Network.PodCIDRs, ",")
	}
	if k.Kubeconfig == "" {
		// No client can authenticate, so none has access; the node runs its static pods.
		config["authentication"] = map[string]any{"anonymous": map[string]any{"enabled": false}, "webhook": map[string]any{"enabled": false}}
		config["authorization"] = map[string]any{"mode": "AlwaysAllow"}
		delete(config, "rotateCertificates")
	}
	if b.n.Runtime.CgroupParent != "" && b.systemdCgroup() {
		config["kubeletCgroups"] = b.n.Runtime.CgroupParent
	}
	if b.f.CgroupV1 {
		config["failCgroupV1"] = false // kubelets before 1.31 warn of a field that they do not know
	}
	maps.Copy(config, k.Config)
	text, err := yaml.Marshal(config)
	if err != nil {
		b.fieldError("kubelet.config", fmt.Errorf("kubelet.config: %w; want plain values, lists and mappings", err))
		return nil
	}
	file := tasks.File{
		M:    provision.Meta{Why: "kubelet.config", Restarts: []string{kubeletUnit}, Needs: after},
		Path: kubeletConfig, Content: "# Made by `berth node` from the node file. Changes here are undone; put them there.\n" + string(text),
	}
	manifests := tasks.Dir{M: b.meta("kubelet.staticPodPath"), Path: k.ManifestsDir}
	b.add(file)
	b.add(manifests)
	return []string{file.ID(), manifests.ID()}
}

func kubeletFlags(flags map[string]string) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(flags)) {
		list = append(list, "--"+name+"="+flags[name])
	}
	return strings.Join(list, " ")
}

// kubeletUnit is the kubelet's unit. With kubeadm the command is in its drop-in.
func (b *builder) kubeletUnit() string {
	k := &b.n.Kubelet
	command := b.kubeletBinary()
	if !k.Kubeadm {
		command += " --config=" + kubeletConfig
		if k.Kubeconfig != "" {
			command += " --kubeconfig=" + k.Kubeconfig
		}
		if k.Bootstrap != "" {
			command += " --bootstrap-kubeconfig=" + k.Bootstrap
		}
		command += " $KUBELET_OPTIONS"
	}
	var body []string
	if k.Kubeadm { // where the user of kubeadm's packages sets KUBELET_EXTRA_ARGS; the node file's settings win
		body = []string{"EnvironmentFile=-/etc/default/kubelet", "EnvironmentFile=-/etc/sysconfig/kubelet"}
	}
	body = append(body,
		"EnvironmentFile=-"+kubeletEnv, "ExecStart="+command,
		"Restart=always", "RestartSec=10", "KillMode=process", "CPUAccounting=true", "MemoryAccounting=true", "OOMScoreAdjust=-999",
	)
	if b.n.Runtime.CgroupParent != "" && b.systemdCgroup() {
		body = append(body, "Slice="+strings.TrimPrefix(b.n.Runtime.CgroupParent, "/"))
	}
	return unitText(
		section{"Unit", []string{
			"Description=kubelet: the Kubernetes node agent", "Documentation=https://kubernetes.io/docs/",
			"Wants=network-online.target", "After=network-online.target " + b.rt.criUnit, "StartLimitIntervalSec=0",
		}},
		section{"Service", body}, installed())
}

// kubeadmDropIn has the variables and files that kubeadm writes and expects.
func kubeadmDropIn(binary string) string {
	return unitText(section{"Service", []string{
		`Environment="KUBELET_KUBECONFIG_ARGS=--bootstrap-kubeconfig=/etc/kubernetes/bootstrap-kubelet.conf --kubeconfig=/etc/kubernetes/kubelet.conf"`,
		`Environment="KUBELET_CONFIG_ARGS=--config=/var/lib/kubelet/config.yaml"`,
		"EnvironmentFile=-/var/lib/kubelet/kubeadm-flags.env",
		"ExecStart=",
		"ExecStart=" + binary + " $KUBELET_KUBECONFIG_ARGS $KUBELET_CONFIG_ARGS $KUBELET_KUBEADM_ARGS $KUBELET_EXTRA_ARGS $KUBELET_OPTIONS",
	}})
}
