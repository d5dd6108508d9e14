package handover

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"time"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
	"github.com/berthrun/berth/internal/provision/crisock"
)

const kubeletUnit = "kubelet.service"

// stopTimeout bounds the stop of one pod: the runtime waits for the containers' grace period, then
// kills.
const stopTimeout = 2 * time.Minute

// Drain stops the pods of the old runtime, so that they do not run beside those
// that the kubelet starts in the new one. The kubelet is stopped first, or it would
// start them again; a Unit task that comes later starts it.
type Drain struct {
	M        provision.Meta
	Old, New Runtime
	// Kubelet is set if the machine has a kubelet.
	Kubelet bool
}

// ID is "drain RUNTIME".
func (d Drain) ID() string { return "drain " + d.Old.Name }

// Meta returns M.
func (d Drain) Meta() provision.Meta { return d.M }

// Objects is whether the kubelet runs, so that an apply that fails later starts it
// again, and berth's engine. Pods belong to the kubelet.
func (d Drain) Objects(context.Context, provision.Host) ([]provision.Object, error) {
	var list []provision.Object
	if d.Kubelet {
		list = append(list, RunningKubelet())
	}
	if d.Old.Engine != "" && d.New.Engine != "" {
		list = append(list, provision.Object{Kind: kindEngine, Name: berthUnit})
	}
	return list, nil
}

// Check lists the pods of the old runtime. A runtime that does not answer has none.
func (d Drain) Check(ctx context.Context, host provision.Host) (provision.Change, error) {
	var change provision.Change
	pods, err := d.pods(ctx, host)
	if err != nil {
		return change, err
	}
	running := 0
	for _, pod := range pods {
		if pod.State == runtimeapi.PodSandboxState_SANDBOX_READY {
			running++
		}
		change.Diffs = append(change.Diffs, provision.Diff{
			Object: provision.Object{Kind: "pod", Name: pod.GetMetadata().GetNamespace() + "/" + pod.GetMetadata().GetName()},
			Action: provision.Delete, Reason: "is stopped in " + d.Old.Name + "; " + d.after("it"),
		})
	}
	if running > 0 {
		change.Disrupts = fmt.Sprintf("stops the pods that run in %s (%d); %s", d.Old.Name, running, d.after("them"))
	}
	return change, nil
}

// after says what happens to pods that were stopped.
func (d Drain) after(them string) string {
	if d.Kubelet {
		return "the kubelet starts " + them + " in " + d.New.Name
	}
	return "there is no kubelet to start " + them + " in " + d.New.Name
}

func (d Drain) pods(ctx context.Context, host provision.Host) ([]*runtimeapi.PodSandbox, error) {
	if !host.Live() {
		return nil, nil
	}
	conn, err := connect(ctx, d.Old.Endpoint)
	if errors.Is(err, errs.Unavailable) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	if d.Old.Engine != "" {
		// After the handover berth serves the pods of its other engine there.
		if engine, err := engineOf(ctx, conn); err != nil || engine != d.Old.Engine {
			return nil, err
		}
	}
	return list(ctx, conn)
}

// engineOf reads from a running berth which engine it was started with.
func engineOf(ctx context.Context, conn *crisock.Conn) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	resp, err := conn.Runtime.Status(ctx, &runtimeapi.StatusRequest{Verbose: true})
	if err != nil {
		return "", fmt.Errorf("cannot read which engine berth has: %w", err)
	}
	var config struct {
		Engine string `json:"engine"`
	}
	if text := resp.GetInfo()["config"]; text != "" {
		if err := json.Unmarshal([]byte(text), &config); err != nil {
			return "", fmt.Errorf("cannot read which engine berth has: its configuration in Status is not JSON: %w", err)
		}
	}
	return cmp.Or(config.Engine, "native"), nil
}

func list(ctx context.Context, conn *crisock.Conn) ([]*runtimeapi.PodSandbox, error) {
	resp, err := conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{})
	if err != nil {
		return nil, fmt.Errorf("cannot list pods: %w", err)
	}
	pods := resp.GetItems()
	slices.SortFunc(pods, func(a, b *runtimeapi.PodSandbox) int {
		return slices.Compare(
			[]string{a.GetMetadata().GetNamespace(), a.GetMetadata().GetName(), a.GetId()},
			[]string{b.GetMetadata().GetNamespace(), b.GetMetadata().GetName(), b.GetId()})
	})
	return pods, nil
}

// Apply stops the kubelet, then stops and removes every pod. It tries all; a pod that remains is an
// error.
func (d Drain) Apply(ctx context.Context, host provision.Host) error {
	pods, err := d.pods(ctx, host)
	if err != nil || len(pods) == 0 {
		return err
	}
	if running, err := kubeletRuns(ctx, host); err != nil {
		return err
	} else if running {
		if err := host.Units().Stop(ctx, kubeletUnit); err != nil {
			return err
		}
	}
	conn, err := connect(ctx, d.Old.Endpoint)
	if err != nil {
		return err
	}
	defer conn.Close()
	var failed []error
	for i, pod := range pods {
		provision.Note(ctx, "pod %d of %d: %s/%s", i+1, len(pods), pod.GetMetadata().GetNamespace(), pod.GetMetadata().GetName())
		failed = append(failed, remove(ctx, conn, pod))
	}
	return errors.Join(failed...)
}

func remove(ctx context.Context, conn *crisock.Conn, pod *runtimeapi.PodSandbox) error {
	ctx, cancel := context.WithTimeout(ctx, stopTimeout)
	defer cancel()
	name := pod.GetMetadata().GetNamespace() + "/" + pod.GetMetadata().GetName()
	if _, err := conn.Runtime.StopPodSandbox(ctx, &runtimeapi.StopPodSandboxRequest{PodSandboxId: pod.GetId()}); err != nil {
		return fmt.Errorf("cannot stop pod %s: %w", name, err)
	}
	if _, err := conn.Runtime.RemovePodSandbox(ctx, &runtimeapi.RemovePodSandboxRequest{PodSandboxId: pod.GetId()}); err != nil {
		return fmt.Errorf("cannot remove pod %s: %w", name, err)
	}
	return nil
}

func kubeletRuns(ctx context.Context, host provision.Host) (bool, error) {
	state, err := host.Units().State(ctx, kubeletUnit)
	return state.Active == "active" || state.Active == "activating", err
}

// RunningKubelet is the object that exists while the kubelet runs.
func RunningKubelet() provision.Object {
	return provision.Object{Kind: kindKubelet, Name: kubeletUnit}
}

// Evict stops and removes all pods of runtimes that are about to stop. The kubelet is
// stopped before, or it would start them again; RunningKubelet restores it.
func Evict(ctx context.Context, host provision.Host, endpoints []string) error {
	running, err := kubeletRuns(ctx, host)
	if err != nil {
		return err
	}
	if running {
		if err := host.Units().Stop(ctx, kubeletUnit); err != nil {
			return err
		}
	}
	for _, endpoint := range endpoints {
		if err := crisock.RemoveSandboxes(ctx, endpoint); err != nil {
			return err
		}
	}
	return nil
}
