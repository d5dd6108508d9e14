package preflight

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/crisock"
)

// skew is how many minor versions a kubelet may be older than its kubeadm.
const skew = 3

// kubelet looks for the kubelet and its unit.
func kubelet(ctx context.Context, s *survey) error {
	at := program(s.host, "kubelet")
	if at == "" {
		s.add("KubeletVersion", Both, "there is no kubelet in PATH", "kubelet.assets of the node file, or the package kubelet")
	} else {
		s.version = versionOf(ctx, s.host, at, "--version")
	}
	kubeadm := versionOf(ctx, s.host, program(s.host, "kubeadm"), "version", "-o", "short")
	if known := (version{}); s.version != known && kubeadm != known {
		switch {
		case !s.version.atLeast(kubeadm.major, kubeadm.minor-skew):
			s.add("KubeletVersion", Both, fmt.Sprintf("the kubelet is %s and kubeadm %s", s.version, kubeadm), "install a newer kubelet")
		case !kubeadm.atLeast(s.version.major, s.version.minor):
			s.add("KubeletVersion", Init, fmt.Sprintf("the kubelet is %s and kubeadm %s, whose control plane would be older", s.version, kubeadm), "install a newer kubeadm")
		}
	}
	state, err := s.host.Units().State(ctx, "kubelet.service")
	switch {
	case err != nil && !errors.Is(err, errs.NotFound):
		return err
	case err != nil || state.Load == "not-found" || state.Load == "":
		s.add("Service-kubelet", Nobody, "there is no kubelet.service", "kubelet.kubeadm: true in the node file writes it")
	case state.Enabled != "enabled":
		s.add("Service-kubelet", Nobody, "kubelet.service is "+state.Enabled+", and would not start at boot", "systemctl enable kubelet.service")
	}
	return nil
}

const containerdSocket = "/run/containerd/containerd.sock"

// known are the sockets that kubeadm finds by itself, the first where it finds none.
func known() []string {
	return []string{containerdSocket, "/run/crio/crio.sock", "/run/cri-dockerd.sock"}
}

// sockets are those of the machine's runtimes: those that kubeadm finds by itself, and others.
func (s *survey) sockets() (there, others []string) {
	for _, socket := range known() {
		if socket == containerdSocket && crisock.BerthsEngine(s.host.Files()) == "docker" && provision.Exists(s.host.Files(), crisock.Configured(s.host.Files(), "berth")) {
			continue // it is docker's, and berth serves CRI over that
		}
		if provision.Exists(s.host.Files(), socket) {
			there = append(there, socket)
		}
	}
	for _, name := range []string{"berth", "containerd", "crio"} {
		socket := strings.TrimPrefix(crisock.Configured(s.host.Files(), name), "/var")
		if socket != "" && provision.Exists(s.host.Files(), socket) && !slices.Contains(there, socket) {
			others = append(others, socket)
		}
	}
	return there, others
}

// reset is the command that undoes what kubeadm made here. With a socket that does not exist, it leaves
// the pods running and only warns.
func (s *survey) reset() string {
	if there, others := s.sockets(); len(there) == 0 && len(others) > 0 {
		return "kubeadm reset --cri-socket unix://" + others[0]
	}
	return "kubeadm reset"
}

// runtimes looks for the one runtime that kubeadm would talk to.
func runtimes(ctx context.Context, s *survey) error {
	there, others := s.sockets()
	switch all := slices.Concat(there, others); {
	case len(all) == 0:
		s.add("CRI", Both, "no runtime listens on a CRI socket", "berth node apply")
	case s.joined: // its configuration names the socket
	case len(there) > 1:
		s.add("CRI", Both, "there is more than one runtime: "+list(all), "say which: --cri-socket unix://"+all[0]+", or criSocket in its configuration")
	case len(others) > 0:
		s.add("CRI", Both, "kubeadm does not find "+list(others)+" by itself", "say so: --cri-socket unix://"+others[0]+", or criSocket in its configuration")
	}
	for _, socket := range slices.Concat(there, others) {
		s.ask(ctx, socket)
	}
	return nil
}

const callTimeout = 10 * time.Second

// ask wants a runtime that is ready, and tells its cgroup driver.
func (s *survey) ask(ctx context.Context, socket string) {
	conn, err := crisock.Dial(socket)
	if err != nil {
		s.add("CRI", Both, err.Error(), "its log tells more")
		return
	}
	defer conn.Close()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{})
	if err != nil {
		s.add("CRI", Both, fmt.Sprintf("%s is there, and who listens does not serve CRI: %v", socket, err), "its log tells more")
		return
	}
	for _, c := range resp.GetStatus().GetConditions() {
		if c.GetType() == runtimeapi.RuntimeReady && !c.GetStatus() {
			s.add("CRI", Both, fmt.Sprintf("%s is not ready: %s: %s", socket, c.GetReason(), c.GetMessage()), "its log tells more")
		}
	}
	if _, err := conn.Runtime.RuntimeConfig(ctx, &runtimeapi.RuntimeConfigRequest{}); err != nil {
		s.add("ContainerRuntimeVersion", Nobody, socket+" does not tell its cgroup driver (RuntimeConfig), and a kubelet from 1.37 on wants it", "install containerd 2.0, CRI-O 1.28 or newer, or berth")
	}
}
