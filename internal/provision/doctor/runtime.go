package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/crisock"
	"github.com/berthrun/berth/internal/provision/kubelet"
)

const callTimeout = 10 * time.Second

// services reports units of a node that should run and do not.
func services(ctx context.Context, d *diagnosis) error {
	for _, name := range []string{
		"berth-supervisor.service", "berth.service", "containerd.service", "crio.service", "docker.service",
		"cri-docker.service", "kubelet.service", "berth-node.service",
	} {
		state, err := d.host.Units().State(ctx, name)
		if err != nil {
			return err
		}
		oneshot := name == "berth-node.service"
		switch {
		case state.Load == "masked" && state.Active != "active":
			d.add(Warning, name+" is masked", "if it should run: systemctl unmask "+name)
		case state.Active == "failed", state.Active == "activating" && state.Sub == "auto-restart":
			d.add(Problem, fmt.Sprintf("%s is %s (%s), result %s", name, state.Active, state.Sub, state.Result), "journalctl -u "+name+" says why")
		case state.Enabled == "enabled" && state.Active == "inactive" && !oneshot:
			d.add(Problem, name+" is enabled and does not run", "systemctl start "+name)
		}
		if state.NeedReload {
			d.add(Warning, name+" has changed on disk since systemd read it", "systemctl daemon-reload && systemctl restart "+name)
		}
	}
	return nil
}

// runtime is a running runtime.
type runtime struct {
	socket string
	name   string
	// driver is the cgroup driver that it reports; empty if it cannot report one.
	driver string
}

// dockers reports whether the machine runs docker, and no kubelet that talks to its containerd: that
// needs no CRI then. alone is true if there is no kubelet at all, and berth does not serve CRI over
// docker.
func dockers(ctx context.Context, d *diagnosis) (running, alone bool, err error) {
	state, err := d.host.Units().State(ctx, "docker.service")
	if err != nil || state.Active != "active" {
		return false, false, err
	}
	k, err := kubelet.Find(d.host)
	if err != nil {
		return false, false, nil // the check of the kubelet reports it
	}
	running = !k.There() || k.Endpoint.Text != "" && path.Base(k.Endpoint.Text) != "containerd.sock"
	return running, !k.There() && crisock.BerthsEngine(d.host.Files()) != "docker", nil
}

// findRuntimes connects to all sockets that exist.
func findRuntimes(ctx context.Context, d *diagnosis) error {
	docker, alone, err := dockers(ctx, d)
	if err != nil {
		return err
	}
	for _, socket := range sockets(d.host.Files()) {
		if _, err := d.host.Files().Stat(socket); err != nil || docker && path.Base(socket) == "containerd.sock" {
			continue
		}
		r, err := d.ask(ctx, socket)
		if crisock.Unserved(err) && path.Base(socket) == "containerd.sock" {
			err = crisock.WhyUnserved(ctx, d.host, "containerd.service")
		}
		if err != nil {
			d.add(Problem, fmt.Sprintf("%s exists, and the server there does not serve CRI: %v", socket, err),
				"is CRI disabled in the runtime's configuration (disabled_plugins of containerd)? See its log")
			continue
		}
		d.runtimes = append(d.runtimes, r)
	}
	if len(d.runtimes) == 0 && !alone {
		d.add(Problem, "no runtime answers on a CRI socket", "install one: berth node init, then berth node apply")
	}
	return nil
}

// sockets lists the sockets of the runtimes' configurations, and the default sockets: a
// configuration may be newer than the running process.
func sockets(files provision.Files) []string {
	list := []string{"/run/berth/berth.sock", "/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/cri-dockerd.sock"}
	for _, name := range []string{"berth", "containerd", "crio"} {
		socket := crisock.Configured(files, name)
		if strings.HasPrefix(socket, "/var/run/") {
			socket = strings.TrimPrefix(socket, "/var")
		}
		if !slices.Contains(list, socket) {
			list = append(list, socket)
		}
	}
	return list
}

func (d *diagnosis) ask(ctx context.Context, socket string) (runtime, error) {
	r := runtime{socket: socket}
	conn, err := crisock.Dial(socket)
	if err != nil {
		return r, err
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	version, err := conn.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
	if err != nil {
		return r, err
	}
	r.name = version.GetRuntimeName() + " " + version.GetRuntimeVersion()
	status, err := conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		return r, err
	}
	for _, c := range status.GetStatus().GetConditions() {
		if !c.GetStatus() && (c.GetType() == runtimeapi.RuntimeReady || c.GetType() == runtimeapi.NetworkReady) {
			fix := "see its log"
			if c.GetType() == runtimeapi.NetworkReady {
				fix = "install the cluster's network; it writes a file to /etc/cni/net.d (see the check network)"
			}
			d.add(Problem, fmt.Sprintf("%s says: %s is false: %s: %s", r.name, c.GetType(), c.GetReason(), c.GetMessage()), fix)
		}
	}
	// Older runtimes lack the call, and do not report their driver.
	if config, err := conn.Runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{}); err == nil && config.GetLinux() != nil {
		r.driver = strings.ToLower(config.GetLinux().GetCgroupDriver().String())
	}
	return r, nil
}

func readKubelet(_ context.Context, d *diagnosis) error {
	var err error
	if d.kubelet, err = kubelet.Find(d.host); errors.Is(err, errs.Invalid) {
		d.add(Problem, err.Error(), "correct it; the kubelet does not start with it")
		return nil
	}
	if program := d.kubelet.Program; path.IsAbs(program) {
		if _, missing := d.host.Files().Stat(program); errors.Is(missing, errs.NotFound) {
			d.add(Problem, kubelet.Unit+" starts "+program+", which is not there",
				"install the kubelet: the package, or kubelet.assets of the node file; where it lies elsewhere, `berth node apply` writes the unit for it")
		}
	}
	return err
}

// orDefault is the file to change a setting in.
func orDefault(file string) string {
	if file == "" {
		return kubelet.ConfigFile
	}
	return file
}

// kubeletFits compares the kubelet with the runtime that it talks to.
func kubeletFits(_ context.Context, d *diagnosis) error {
	endpoint, driver := d.kubelet.Endpoint, d.kubelet.Driver
	if endpoint.Text == "" {
		return nil
	}
	socket := path.Clean(strings.TrimPrefix(endpoint.Text, "unix://"))
	i := slices.IndexFunc(d.runtimes, func(r runtime) bool { return r.socket == strings.TrimPrefix(socket, "/var") })
	if i < 0 {
		d.add(Problem, fmt.Sprintf("the kubelet talks to %s (%s), where no runtime answers", socket, endpoint.From),
			"start that runtime, or set containerRuntimeEndpoint in "+orDefault(d.kubelet.Config)+" and restart the kubelet")
		return nil
	}
	if r := d.runtimes[i]; r.driver != "" && driver.Text != "" && r.driver != driver.Text {
		d.add(Problem, fmt.Sprintf("the kubelet's cgroup driver is %s (%s), that of %s is %s", driver.Text, driver.From, r.name, r.driver),
			"make them the same, systemd on a machine with systemd, and restart both")
	}
	return nil
}

// readLimit bounds configuration files.
const readLimit = 1 << 20

func read(host provision.Host, path string) ([]byte, error) { return readFiles(host.Files(), path) }

func readFiles(files provision.Files, path string) ([]byte, error) {
	r, err := files.Open(path)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	return io.ReadAll(io.LimitReader(r, readLimit))
}
