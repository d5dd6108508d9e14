// Package podrun runs pods in the foreground, as a kubelet does: init containers in order,
// probes, restarts with back-off, and a grace period at the end. It is a plain CRI client.
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
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podrun/host"
	"github.com/berthrun/berth/internal/cli/podrun/output"
	"github.com/berthrun/berth/internal/cli/podrun/volumes"
	"github.com/berthrun/berth/internal/cli/podyaml"
	"github.com/berthrun/berth/internal/cli/podyaml/network"
	"github.com/berthrun/berth/internal/criclient"
	"github.com/berthrun/berth/internal/errs"
)

// Where pods have their volumes and logs unless Options say otherwise.
const (
	DefaultVolumeBase = "/var/lib/berth-pods"
	DefaultLogBase    = "/var/log/pods"
)

// Options say what to run and where it shows. Conn and Bundle are required.
type Options struct {
	Conn   *criclient.Conn
	Bundle *podyaml.Bundle
	// VolumeBase and LogBase hold a directory for each pod, ClaimBase one for each
	// claim, SeccompDir the profiles that pods name by relative paths.
	VolumeBase, LogBase, ClaimBase, SeccompDir string
	// Prefix names the pod in what is printed, "" for none.
	Prefix string
	// Names are the pods of the file's Services that have addresses, nil for none.
	Names func() []network.Names
	// HasAddresses is called when the pod has its addresses, Ends before it gives them back, Ready
	// when all of its containers were ready for the first time. They may be nil.
	HasAddresses func(k *Pod, ips []string)
	Ends, Ready  func()
	// Out and Err take what the containers write (nil: nothing is shown), Say the
	// messages of the run.
	Out, Err, Say io.Writer
	// Attach names the container that In, Out and Err are joined to, "" for none:
	// then the containers' logs go to Out and Err.
	Attach string
	In     io.Reader
	// Remove leaves nothing of the pod when it ends.
	Remove bool
	// Kill, when closed, ends all grace periods: containers are killed. It may be nil.
	Kill <-chan struct{}
	// Timings of the run; zero fields take their defaults.
	Timings Timings

	// gone says that the runtime did not answer for as long as a call waits. The pods of a file share it.
	gone *atomic.Bool
	// restarts bounds the restarts of the pod's containers, nil for no bound.
	restarts *retries
}

// Timings are the periods of a run.
type Timings struct {
	// Poll is how often the status of a container is read: 200 milliseconds.
	Poll time.Duration
	// Usage is how often what containers write to disk is compared with their limits:
	// 10 seconds.
	Usage time.Duration
	// BackoffMin and BackoffMax bound the pause before a restart, which doubles
	// each time: 10 seconds and 5 minutes. It starts again at BackoffMin after a container ran
	// for twice BackoffMax.
	BackoffMin, BackoffMax time.Duration
	// Retry is the pause before a call is repeated that the runtime could not serve: 1 second. Patience
	// is how long a call that creates something waits for a runtime that does not answer: 1 minute.
	Retry, Patience time.Duration
}

// podRun is one run of a pod.
type podRun struct {
	Options
	pod       *corev1.Pod
	facts     podyaml.Facts
	sandboxID string
	out       *output.Multiplexer
	// pulled are the ids of images that were pulled by a name which means another image of the node. Nothing changes it once
	// a container is created.
	pulled map[string]string
	// imageHandler is the pod's handler, if that has images of its own.
	imageHandler string
	// ready counts containers that are not ready yet.
	ready readiness
	// followers are goroutines that print logs.
	followers sync.WaitGroup

	// requested says that the runtime may have the sandbox. impatient says that no call waits longer
	// than Patience for a runtime that does not answer; it is false while a pod runs in the foreground.
	requested, impatient bool

	hosts sync.Mutex // held while the hosts file is made and written
	// ending says that the hosts file is not written any more. It is guarded by hosts.
	ending bool

	// evicted says that the pod ends because it wrote more than it may.
	evicted atomic.Bool

	mu       sync.Mutex // guards the maps
	attempts map[string]*attempt
	// causes are the reasons of retries that were said since the last call that succeeded.
	causes map[string]bool
}

func newPodRun(opts Options) *podRun {
	opts.VolumeBase = cmp.Or(opts.VolumeBase, DefaultVolumeBase)
	opts.LogBase = cmp.Or(opts.LogBase, DefaultLogBase)
	opts.ClaimBase = cmp.Or(opts.ClaimBase, DefaultClaimBase)
	opts.SeccompDir = cmp.Or(opts.SeccompDir, DefaultSeccompDir)
	opts.Timings = withDefaults(opts.Timings)
	if opts.gone == nil {
		opts.gone = &atomic.Bool{}
	}
	pod := opts.Bundle.Pod
	if pod.UID == "" {
		pod.UID = types.UID(uuid.NewString())
	}
	k := &podRun{Options: opts, pod: pod, impatient: true, attempts: map[string]*attempt{}, causes: map[string]bool{}}
	k.facts = podyaml.Facts{
		Dir:      VolumeDir(opts.VolumeBase, string(pod.UID)),
		LogDir:   LogDir(opts.LogBase, pod.Namespace, pod.Name, string(pod.UID)),
		ClaimDir: opts.ClaimBase, SeccompDir: opts.SeccompDir,
	}
	k.setHostFacts()
	named := opts.Prefix != "" || len(pod.Spec.InitContainers)+len(pod.Spec.Containers) > 1
	k.out = output.New(named, opts.Prefix, opts.Out, opts.Err)
	return k
}

// withDefaults fills in the defaults.
func withDefaults(t Timings) Timings {
	return Timings{
		Usage:      cmp.Or(t.Usage, 10*time.Second),
		Poll:       cmp.Or(t.Poll, 200*time.Millisecond),
		BackoffMin: cmp.Or(t.BackoffMin, 10*time.Second),
		BackoffMax: cmp.Or(t.BackoffMax, 5*time.Minute),
		Retry:      cmp.Or(t.Retry, time.Second),
		Patience:   cmp.Or(t.Patience, time.Minute),
	}
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
	k := newPodRun(opts)
	if err := k.checkName(ctx); err != nil {
		return 0, err
	}
	if err := k.pullAll(ctx); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, k.finish(ctx)) }()
	if err := k.createSandbox(ctx); err != nil {
		return 0, err
	}
	k.impatient = false
	podErr := k.supervisePod(ctx)
	if podErr != nil && ctx.Err() == nil {
		k.say("%v", podErr)
	}
	if err := k.stopAll(ctx); err != nil {
		return 0, err
	}
	code = k.exitCode()
	if code == 0 && podErr != nil && ctx.Err() == nil {
		code = 1
	}
	return code, nil
}

// start runs the init containers, starts the containers once and leaves them; the
// caller has checked ForegroundFields. On error nothing is left.
func start(ctx context.Context, opts Options) (_ *podRun, err error) {
	opts.Remove = true // what fails
	k := newPodRun(opts)
	if err := k.checkName(ctx); err != nil {
		return nil, err
	}
	if err := k.pullAll(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.end(ctx))
		}
	}()
	if err := k.createSandbox(ctx); err != nil {
		return nil, err
	}
	for i := range k.pod.Spec.InitContainers {
		if err := k.runInit(ctx, &k.pod.Spec.InitContainers[i]); err != nil {
			return nil, err
		}
	}
	for i := range k.pod.Spec.Containers {
		a, err := k.start(ctx, &k.pod.Spec.Containers[i], 0)
		if err != nil {
			return nil, err
		}
		if err := k.postStart(ctx, a); err != nil {
			return nil, err
		}
	}
	return k, nil
}

// checkName refuses a second running pod of the same name: users identify
// pods by their names.
func (k *podRun) checkName(ctx context.Context) error {
	var resp *runtimeapi.ListPodSandboxResponse
	err := k.retryUnavailable(ctx, func(ctx context.Context) (err error) {
		resp, err = k.Conn.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{Filter: &runtimeapi.PodSandboxFilter{
			State: &runtimeapi.PodSandboxStateValue{State: runtimeapi.PodSandboxState_SANDBOX_READY},
		}})
		return err
	})
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

// createSandbox makes the volumes and the sandbox.
func (k *podRun) createSandbox(ctx context.Context) error {
	wanted, err := k.Bundle.Volumes(&k.facts)
	if err != nil {
		return err
	}
	if err := volumes.Make(k.facts.Dir, wanted); err != nil {
		return err
	}
	if err := volumes.MakeOwned(k.facts.LogDir, 0o755); err != nil {
		return fmt.Errorf("cannot make the log directory: %w", err)
	}
	for _, list := range [][]corev1.Container{k.pod.Spec.InitContainers, k.pod.Spec.Containers} {
		for i := range list {
			if err := os.MkdirAll(filepath.Join(k.facts.LogDir, list[i].Name), 0o755); err != nil {
				return fmt.Errorf("cannot make the log directory: %w", err)
			}
		}
	}
	k.facts.CgroupParent = host.CgroupParent(ctx, k.Conn)
	if err := errors.Join(k.chooseIDs(ctx), k.readFeatures(ctx)); err != nil {
		return err
	}
	k.requested = true
	err = k.create(ctx, func(ctx context.Context) error {
		resp, err := k.Conn.Runtime.RunPodSandbox(ctx, &runtimeapi.RunPodSandboxRequest{
			Config: k.Bundle.Sandbox(&k.facts), RuntimeHandler: k.Bundle.Handler,
		})
		k.sandboxID = resp.GetPodSandboxId()
		return err
	})
	if err != nil {
		return err
	}
	var status *runtimeapi.PodSandboxStatusResponse
	err = k.retryUnavailable(ctx, func(ctx context.Context) (err error) {
		status, err = k.Conn.Runtime.PodSandboxStatus(ctx, &runtimeapi.PodSandboxStatusRequest{PodSandboxId: k.sandboxID})
		return err
	})
	if err != nil {
		return err
	}
	network := status.Status.GetNetwork()
	k.facts.PodIPs = k.facts.HostIPs
	if network.GetIp() != "" {
		k.facts.PodIPs = []string{network.GetIp()}
		for _, ip := range network.GetAdditionalIps() {
			k.facts.PodIPs = append(k.facts.PodIPs, ip.GetIp())
		}
	}
	if k.HasAddresses != nil {
		k.HasAddresses(&Pod{k}, k.facts.PodIPs)
	}
	return k.writeHosts()
}

// Pod is a running pod whose hosts file can be rewritten.
type Pod struct{ k *podRun }

// RewriteHosts rewrites the pod's hosts file, after other pods have got addresses or given them back.
func (p *Pod) RewriteHosts() error { return p.k.writeHosts() }

func (k *podRun) writeHosts() error {
	k.hosts.Lock() // else a file with fewer names could be written after this one
	defer k.hosts.Unlock()
	if k.ending {
		return nil
	}
	var names []network.Names
	if k.Names != nil {
		names = k.Names()
	}
	file := podyaml.HostsFile(k.facts.Dir)
	// In place: containers have mounted the file itself.
	if err := os.WriteFile(file, []byte(k.Bundle.Hosts(&k.facts, names)), 0o644); err != nil {
		return fmt.Errorf("cannot write the pod's hosts file: %w", err)
	}
	return os.Chmod(file, 0o644) // whatever the umask says
}

// say prints a message, with errors in the form for users.
func (k *podRun) say(format string, args ...any) {
	for i, arg := range args {
		if err, ok := arg.(error); ok {
			args[i] = errs.Message(err)
		}
	}
	k.out.Say(k.Say, fmt.Sprintf(format, args...))
}
