// Package podrun runs one pod in the foreground and is its keeper, as a kubelet is
// to its pods: init containers in order, probes, restarts with back-off, the grace
// at the end. It is a plain CRI client.
package podrun

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml"
	"github.com/berthrun/berth/internal/cri/client"
	"github.com/berthrun/berth/internal/errs"
)

// Where pods have their volumes and logs unless Options say otherwise.
const (
	DefaultVolumeBase = "/var/lib/berth-pods"
	DefaultLogBase    = "/var/log/pods"
)

// Options say what to run and where it shows. Conn and Bundle are required.
type Options struct {
	Conn   *client.Conn
	Bundle *podyaml.Bundle
	// VolumeBase and LogBase hold a directory for each pod.
	VolumeBase, LogBase string
	// Out and Err take what the containers write (nil: nobody is shown), Say what
	// the keeper tells.
	Out, Err, Say io.Writer
	// Attach names the container that In, Out and Err are joined to, "" for none:
	// then the containers' logs go to Out and Err.
	Attach string
	In     io.Reader
	// Remove leaves nothing of the pod when it ends.
	Remove bool
	// Kill, when closed, ends every patience: what is stopped is killed. It may be
	// nil.
	Kill <-chan struct{}
	// Timings of the keeper; zero fields take their defaults.
	Timings Timings
}

// Timings are how a keeper paces itself.
type Timings struct {
	// Poll is how often a container is looked at: 200 milliseconds.
	Poll time.Duration
	// BackoffMin and BackoffMax bound the pause before a restart, which doubles
	// each time: 10 seconds and 5 minutes. It starts anew after a container ran
	// for twice BackoffMax.
	BackoffMin, BackoffMax time.Duration
}

// keeper is one run of a pod.
type keeper struct {
	Options
	pod       *corev1.Pod
	facts     podyaml.Facts
	sandboxID string
	out       *multiplexer
	// ready counts containers that are not ready yet.
	ready readiness
	// followers are goroutines that print logs.
	followers sync.WaitGroup

	mu       sync.Mutex // guards attempts
	attempts map[string]*attempt
}

func newKeeper(opts Options) *keeper {
	opts.VolumeBase = cmp.Or(opts.VolumeBase, DefaultVolumeBase)
	opts.LogBase = cmp.Or(opts.LogBase, DefaultLogBase)
	opts.Timings = Timings{
		Poll:       cmp.Or(opts.Timings.Poll, 200*time.Millisecond),
		BackoffMin: cmp.Or(opts.Timings.BackoffMin, 10*time.Second),
		BackoffMax: cmp.Or(opts.Timings.BackoffMax, 5*time.Minute),
	}
	pod := opts.Bundle.Pod
	if pod.UID == "" {
		pod.UID = types.UID(uuid.NewString())
	}
	k := &keeper{Options: opts, pod: pod, attempts: map[string]*attempt{}}
	k.facts = podyaml.Facts{
		Dir:    VolumeDir(opts.VolumeBase, string(pod.UID)),
		LogDir: LogDir(opts.LogBase, pod.Namespace, pod.Name, string(pod.UID)),
		HostIP: hostIP(),
	}
	k.facts.NodeName, _ = os.Hostname() // a host without a name has pods without it
	k.out = newMultiplexer(len(pod.Spec.InitContainers)+len(pod.Spec.Containers) > 1, opts.Out, opts.Err)
	return k
}

// VolumeDir is where a pod's own volumes are, LogDir where its logs are.
func VolumeDir(base, uid string) string { return filepath.Join(base, uid) }

// LogDir is the directory that a kubelet would use, so that log collectors find it.
func LogDir(base, namespace, name, uid string) string {
	return filepath.Join(base, namespace+"_"+name+"_"+uid)
}

// Run runs the pod until its containers are done or ctx ends; then it is stopped
// with its grace, or at once when Kill is closed. It returns the pod's exit code:
// that of the first container that failed.
func Run(ctx context.Context, opts Options) (code int, err error) {
	k := newKeeper(opts)
	if err := k.checkName(ctx); err != nil {
		return 0, err
	}
	if err := k.pullAll(ctx); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, k.finish(ctx)) }()
	if err := k.up(ctx); err != nil {
		return 0, err
	}
	keepErr := k.keepAll(ctx)
	if keepErr != nil && ctx.Err() == nil {
		k.say("%v", keepErr)
	}
	if err := k.stopAll(ctx); err != nil {
		return 0, err
	}
	code = k.code()
	if code == 0 && keepErr != nil && ctx.Err() == nil {
		code = 1
	}
	return code, nil
}

// Start runs the init containers, starts the containers once and leaves them; the
// caller has seen that the pod needs no keeper. On error nothing is left.
func Start(ctx context.Context, opts Options) (sandboxID string, err error) {
	opts.Remove = true // what fails
	k := newKeeper(opts)
	if err := k.checkName(ctx); err != nil {
		return "", err
	}
	if err := k.pullAll(ctx); err != nil {
		return "", err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.stopAll(ctx), k.finish(ctx))
		}
	}()
	if err := k.up(ctx); err != nil {
		return "", err
	}
	for i := range k.pod.Spec.InitContainers {
		if err := k.runInit(ctx, &k.pod.Spec.InitContainers[i]); err != nil {
			return "", err
		}
	}
	for i := range k.pod.Spec.Containers {
		if _, err := k.start(ctx, &k.pod.Spec.Containers[i], 0); err != nil {
			return "", err
		}
	}
	return k.sandboxID, nil
}

// checkName refuses a second running pod of the same name: names are how people
// tell pods apart.
func (k *keeper) checkName(ctx context.Context) error {
	resp, err := k.Conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
		State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
	}})
	if err != nil {
		return err
	}
	for _, other := range resp.Items {
		if other.Metadata.GetName() == k.pod.Name && other.Metadata.GetNamespace() == k.pod.Namespace {
			return fmt.Errorf("cannot run pod %s/%s: a pod of this name runs (%.12s); stop it with `berth pod stop %s/%s`: %w",
				k.pod.Namespace, k.pod.Name, other.Id, k.pod.Namespace, k.pod.Name, errs.Exists)
		}
	}
	return nil
}

// up makes the volumes and the sandbox.
func (k *keeper) up(ctx context.Context) error {
	volumes, err := k.Bundle.Volumes(k.facts.Dir)
	if err != nil {
		return err
	}
	if err := makeVolumes(k.facts.Dir, volumes); err != nil {
		return err
	}
	if err := os.MkdirAll(k.facts.LogDir, 0o755); err != nil {
		return fmt.Errorf("cannot make the log directory: %w", err)
	}
	for _, list := range [][]corev1.Container{k.pod.Spec.InitContainers, k.pod.Spec.Containers} {
		for i := range list {
			if err := os.MkdirAll(filepath.Join(k.facts.LogDir, list[i].Name), 0o755); err != nil {
				return fmt.Errorf("cannot make the log directory: %w", err)
			}
		}
	}
	k.facts.CgroupParent = cgroupParent(ctx, k.Conn)
	making, stop := k.unhurried(ctx)
	defer stop()
	err = k.patiently(making, func() error {
		resp, err := k.Conn.Runtime.RunPodSandbox(making, &runtimeapi.RunPodSandboxRequest{
			Config: k.Bundle.Sandbox(&k.facts), RuntimeHandler: k.Bundle.Handler,
		})
		k.sandboxID = resp.GetPodSandboxId()
		return err
	})
	if err != nil {
		return err
	}
	status, err := k.Conn.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: k.sandboxID})
	if err != nil {
		return err
	}
	k.facts.PodIP = cmp.Or(status.Status.GetNetwork().GetIp(), k.facts.HostIP)
	return nil
}

// unhurried returns a context for making things: it does not end with ctx, as what
// is cut off half-way goes on in the runtime where nobody stops it, but with Kill.
func (k *keeper) unhurried(ctx context.Context) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(ctx))
	go func() {
		select {
		case <-k.Kill:
			cancel()
		case <-ctx.Done():
		}
	}()
	return ctx, cancel
}

// say tells people what the keeper does.
func (k *keeper) say(format string, args ...any) {
	k.out.say(k.Say, fmt.Sprintf(format, args...))
}

// patiently does a call again that was cut off by a restart of the runtime: for as
// long as nobody answers on the socket, and a few times more. All calls of a keeper
// may be repeated: CRI joins or repeats them.
func (k *keeper) patiently(ctx context.Context, call func() error) error {
	const pause, more = time.Second, 3
	for left := more; ; {
		err := call()
		if !errors.Is(err, errs.Unavailable) || ctx.Err() != nil {
			return err
		}
		if k.Conn.Reachable(ctx) {
			if left--; left < 0 {
				return err
			}
		}
		if err := sleep(ctx, pause); err != nil {
			return err
		}
	}
}

func sleep(ctx context.Context, d time.Duration) error {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-timer.C:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
