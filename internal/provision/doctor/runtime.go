package doctor

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"os"
	"path"
	"slices"
	"strings"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/doctor"
	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/crisock"
	"github.com/berthrun/berth/internal/provision/kubelet"
)

// callTimeout bounds the calls to a runtime, unless Options have another time.
const callTimeout = 10 * time.Second

// services reports units of a node that should run and do not.
func services(ctx context.Context, m *Machine, r *doctor.Report) error {
	for _, name := range []string{
		"berth-supervisor.service", "berth.service", "containerd.service", "crio.service", "docker.service",
		"cri-docker.service", "kubelet.service", "berth-node.service",
	} {
		state, err := m.host.Units().State(ctx, name)
		if err != nil {
			return err
		}
		oneshot := name == "berth-node.service"
		switch {
		case state.Load == "masked" && state.Active != "active":
			r.Add(warning, name, name+" is masked", "if it should run: systemctl unmask "+name)
		case state.Active == "failed", state.Active == "activating" && state.Sub == "auto-restart":
			r.Add(problem, name, fmt.Sprintf("%s is %s (%s), result %s", name, state.Active, state.Sub, state.Result), "journalctl -u "+name+" says why")
		case state.Enabled == "enabled" && state.Active == "inactive" && !oneshot:
			r.Add(problem, name, name+" is enabled and does not run", "systemctl start "+name)
		}
		if state.NeedReload {
			r.Add(warning, name, name+" has changed on disk since systemd read it", "systemctl daemon-reload && systemctl restart "+name)
		}
	}
	return nil
}

// answer is what the server at a socket says.
type answer struct {
	socket string
	// err is why it does not serve CRI; then the rest is empty. unheard: no process listens on the socket. silent: the
	// process that does has not answered in time. noSocket: it is something else.
	err                       error
	unheard, silent, noSocket bool
	// pid is the process that listens, 0 where it is not known.
	pid int
	// name is the runtime's with its version.
	name string
	// driver is the cgroup driver that it reports; empty if it cannot report one.
	driver string
	// unready are its conditions that are false.
	unready []*runtimeapi.RuntimeCondition
}

// berth reports whether the runtime is berth.
func (a answer) berth() bool { return strings.HasPrefix(a.name, "berth ") }

// dockers reports whether the machine runs docker, and no kubelet that talks to its containerd: that
// needs no CRI then. alone is true if there is no kubelet at all, and berth does not serve CRI over
// docker.
func (m *Machine) dockers(ctx context.Context) (running, alone bool, err error) {
	state, err := m.host.Units().State(ctx, "docker.service")
	if errors.Is(err, errs.Unsupported) {
		return false, false, nil // no systemd, no such unit
	}
	if err != nil || state.Active != "active" {
		return false, false, err
	}
	k, err := m.kubelet()
	if err != nil {
		return false, false, nil // the check of the kubelet reports it
	}
	running = !k.There() || k.Endpoint.Text != "" && path.Base(k.Endpoint.Text) != "containerd.sock"
	return running, !k.There() && crisock.BerthsEngine(m.host.Files()) != "docker", nil
}

// ask connects to all sockets that exist.
func (m *Machine) ask(ctx context.Context) ([]answer, error) {
	docker, _, err := m.dockers(ctx)
	if err != nil {
		return nil, err
	}
	var all []answer
	for _, socket := range m.sockets() {
		if _, err := m.host.Files().Stat(socket); err != nil || docker && path.Base(socket) == "containerd.sock" {
			continue
		}
		a, err := m.askOne(ctx, socket)
		if crisock.Unserved(err) && path.Base(socket) == "containerd.sock" {
			err = crisock.WhyUnserved(ctx, m.host, "containerd.service")
		}
		a.err = err
		all = append(all, a)
	}
	return all, nil
}

// findRuntimes reports sockets without a runtime, runtimes that are not ready, and a machine without.
func findRuntimes(ctx context.Context, m *Machine, r *doctor.Report) error {
	_, alone, err := m.dockers(ctx)
	if err != nil {
		return err
	}
	all, err := m.runtimes()
	if err != nil {
		return err
	}
	serving := 0
	for _, a := range all {
		if a.err != nil {
			m.unserved(a, r)
			continue
		}
		serving++
		for _, c := range a.unready {
			fix := "see its log"
			if c.GetType() == runtimeapi.NetworkReady {
				fix = "install the cluster's network; it writes a file to /etc/cni/net.d (see the check network)"
			}
			r.Add(problem, a.socket, fmt.Sprintf("%s says: %s is false: %s: %s", a.name, c.GetType(), c.GetReason(), c.GetMessage()), fix)
		}
	}
	switch {
	case serving > 0 || alone:
	case m.Berth.Supervisor == "":
		r.Add(problem, "CRI socket", "no runtime answers on a CRI socket", "install one: berth node init, then berth node apply")
	case !slices.ContainsFunc(all, func(a answer) bool { return a.explained() && a.socket == m.Berth.Socket }):
		r.Add(problem, "CRI socket", "no runtime answers on a CRI socket, nor does one on berth's, "+m.Berth.Socket,
			"unless the check daemon names a berth that runs: "+m.start("berth")+"; to make this machine a node: berth node init, then berth node apply")
	}
	return nil
}

// explained reports whether it is known why the socket does not serve.
func (a answer) explained() bool { return a.unheard || a.silent || a.noSocket }

// unserved reports a socket on which no runtime answers.
func (m *Machine) unserved(a answer, r *doctor.Report) {
	server := serverOf(a.socket)
	switch {
	case a.noSocket:
		r.Add(problem, a.socket, fmt.Sprintf("%s is no socket, and %s cannot listen there", a.socket, server), "find out what made it, and remove it: rm -r "+a.socket+"; then "+m.start(server))
	case a.unheard:
		r.Add(problem, a.socket, fmt.Sprintf("%s exists, and no process listens on it: %s does not run", a.socket, server), m.start(server))
	case a.silent:
		who := "the server there"
		if a.pid > 0 {
			who = fmt.Sprintf("process %d, which listens there,", a.pid)
		}
		fix := "its log says what it did last; systemctl restart " + server
		if server == "berth" {
			fix += ": pods run on"
		}
		r.Add(problem, a.socket, fmt.Sprintf("%s exists, and %s has not answered within %s: %s hangs", a.socket, who, m.CallTimeout, server), fix)
	case server == "containerd":
		r.Add(problem, a.socket, fmt.Sprintf("%s exists, and the server there does not serve CRI: %v", a.socket, a.err),
			"is CRI disabled in the runtime's configuration (disabled_plugins of containerd)? See its log")
	default:
		r.Add(problem, a.socket, fmt.Sprintf("%s exists, and the server there does not serve CRI: %v", a.socket, a.err),
			"does another program listen there (ss -xlp | grep "+a.socket+")? See its log")
	}
}

// serverOf is the service, or the program, that listens on a socket.
func serverOf(socket string) string {
	switch base := path.Base(socket); base {
	case "containerd.sock", "crio.sock":
		return strings.TrimSuffix(base, ".sock")
	case "cri-dockerd.sock":
		return "cri-docker"
	}
	return "berth"
}

// start says how to start a runtime.
func (m *Machine) start(name string) string {
	if name != "berth" {
		return "systemctl start " + name + "; if it ends again: journalctl -u " + name
	}
	text := "systemctl start berth, or without systemd `berth serve`"
	if m.Berth.File != "" {
		text = "systemctl start berth, or without systemd `berth serve --config " + m.Berth.File + "`"
	}
	return text + "; its log has the reason if it ends again"
}

// sockets lists the sockets of the runtimes' configurations, and the default sockets: a
// configuration may be newer than the running process.
func (m *Machine) sockets() []string {
	list := []string{"/run/berth/berth.sock", "/run/containerd/containerd.sock", "/run/crio/crio.sock", "/run/cri-dockerd.sock"}
	found := []string{m.Berth.Socket}
	for _, name := range []string{"berth", "containerd", "crio"} {
		found = append(found, crisock.Configured(m.host.Files(), name))
	}
	for _, socket := range found {
		if strings.HasPrefix(socket, "/var/run/") {
			socket = strings.TrimPrefix(socket, "/var")
		}
		if socket != "" && !slices.Contains(list, socket) {
			list = append(list, socket)
		}
	}
	return list
}

func (m *Machine) askOne(ctx context.Context, socket string) (answer, error) {
	a := answer{socket: socket}
	if info, err := os.Stat(socket); err == nil && info.Mode().Type() != fs.ModeSocket {
		a.noSocket = true
		return a, fmt.Errorf("%s is no socket: %w", socket, errs.Unavailable)
	}
	if a.pid, a.unheard = listener(ctx, socket); a.unheard {
		return a, fmt.Errorf("no process listens on %s: %w", socket, errs.Unavailable)
	}
	conn, err := crisock.Dial(socket)
	if err != nil {
		return a, err
	}
	defer conn.Close()
	whole := ctx
	ctx, cancel := context.WithTimeout(ctx, m.CallTimeout)
	defer cancel()
	version, err := conn.Runtime.Version(ctx, &runtimeapi.VersionRequest{})
	var status *runtimeapi.StatusResponse
	if err == nil {
		status, err = conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	}
	if err != nil {
		a.silent = ctx.Err() != nil && whole.Err() == nil
		return a, err
	}
	a.name = version.GetRuntimeName() + " " + version.GetRuntimeVersion()
	for _, c := range status.GetStatus().GetConditions() {
		if !c.GetStatus() && (c.GetType() == runtimeapi.RuntimeReady || c.GetType() == runtimeapi.NetworkReady) {
			a.unready = append(a.unready, c)
		}
	}
	// Older runtimes lack the call, and do not report their driver.
	if config, err := conn.Runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{}); err == nil && config.GetLinux() != nil {
		a.driver = strings.ToLower(config.GetLinux().GetCgroupDriver().String())
	}
	return a, nil
}

// listener returns the process that listens on a socket, 0 where it has no number here. unheard reports that none does: a
// server that was killed has left the socket. The error of a call does not show that: the library turns it into a text.
func listener(ctx context.Context, socket string) (pid int, unheard bool) {
	conn, err := (&net.Dialer{Timeout: callTimeout}).DialContext(ctx, "unix", socket)
	if err != nil {
		return 0, errors.Is(err, syscall.ECONNREFUSED)
	}
	defer conn.Close()
	unixConn, ok := conn.(*net.UnixConn)
	if !ok {
		return 0, false
	}
	raw, err := unixConn.SyscallConn()
	if err != nil {
		return 0, false
	}
	_ = raw.Control(func(fd uintptr) { // without an answer the process is not named
		if peer, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED); err == nil {
			pid = int(peer.Pid)
		}
	})
	return pid, false
}

// served returns the runtimes that serve CRI, none if that cannot be found out.
func (m *Machine) served() []answer {
	all, err := m.runtimes()
	if err != nil {
		return nil // the check of the runtime reports it
	}
	return slices.DeleteFunc(slices.Clone(all), func(a answer) bool { return a.err != nil })
}

// onlyBerth reports whether berth is the machine's only runtime: no other one serves CRI. While none
// does, it is the one with a configuration.
func (m *Machine) onlyBerth() bool {
	if served := m.served(); len(served) > 0 {
		return !slices.ContainsFunc(served, func(a answer) bool { return !a.berth() })
	}
	for _, socket := range m.sockets() {
		if socket != m.Berth.Socket && provision.Exists(m.host.Files(), socket) {
			return false
		}
	}
	return m.Berth.File != ""
}

// checkKubelet reports a kubelet that cannot start.
func checkKubelet(_ context.Context, m *Machine, r *doctor.Report) error {
	k, err := m.kubelet()
	if errors.Is(err, errs.Invalid) {
		r.Add(problem, orDefault(k.Config), errs.Message(err), "correct it; the kubelet does not start with it")
		return nil
	}
	if err == nil && !k.There() {
		r.NotNeeded(noKubelet)
		return nil
	}
	if program := k.Program; path.IsAbs(program) {
		if _, missing := m.host.Files().Stat(program); errors.Is(missing, errs.NotFound) {
			r.Add(problem, program, kubelet.Unit+" starts "+program+", which is not there",
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

// socketOf is the path of an endpoint, below /run.
func socketOf(endpoint string) string {
	return strings.TrimPrefix(path.Clean(strings.TrimPrefix(endpoint, "unix://")), "/var")
}

// kubeletFits compares the kubelet with the runtime that it talks to.
func kubeletFits(_ context.Context, m *Machine, r *doctor.Report) error {
	k, err := m.kubelet()
	if err != nil || k.Endpoint.Text == "" {
		return nil //nolint:nilerr // the check of the kubelet reports it
	}
	endpoint, driver := k.Endpoint, k.Driver
	socket := path.Clean(strings.TrimPrefix(endpoint.Text, "unix://"))
	served := m.served()
	i := slices.IndexFunc(served, func(a answer) bool { return a.socket == socketOf(endpoint.Text) })
	const same = "make them the same, systemd on a machine with systemd, and restart both"
	if i < 0 {
		r.Add(problem, socket, fmt.Sprintf("the kubelet talks to %s (%s), where no runtime answers", socket, endpoint.From),
			"start that runtime, or set containerRuntimeEndpoint in "+orDefault(k.Config)+" and restart the kubelet")
		own := m.Berth.CgroupDriver
		if socketOf(endpoint.Text) == m.Berth.Socket && own != "" && own != "auto" && driver.Text != "" && driver.Text != own {
			r.Add(problem, "cgroup driver", fmt.Sprintf("the kubelet's cgroup driver is %s (%s), that of berth is %s (%s)", driver.Text, driver.From, own, m.Berth.File), same)
		}
		return nil
	}
	if a := served[i]; a.driver != "" && driver.Text != "" && a.driver != driver.Text {
		r.Add(problem, "cgroup driver", fmt.Sprintf("the kubelet's cgroup driver is %s (%s), that of %s is %s", driver.Text, driver.From, a.name, a.driver), same)
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
