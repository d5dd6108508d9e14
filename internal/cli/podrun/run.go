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
	"sync/atomic"
	"time"

	"github.com/google/uuid"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/types"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"

	"github.com/berthrun/berth/internal/cli/podyaml"
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
	Names func() []podyaml.Names
	// HasAddresses is called when the pod has its addresses, Ready when all of its
	// containers were ready for the first time. They may be nil.
	HasAddresses func(k *Pod, ips []string)
	Ready        func()
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
	// Usage is how often what containers write to disk is compared with their limits:
	// 10 seconds.
	Usage time.Duration
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

	// evicted says that the pod ends because it wrote more than it may.
	evicted atomic.Bool

	mu       sync.Mutex // guards attempts
	attempts map[string]*attempt
}

func newKeeper(opts Options) *keeper {
	opts.VolumeBase = cmp.Or(opts.VolumeBase, DefaultVolumeBase)
	opts.LogBase = cmp.Or(opts.LogBase, DefaultLogBase)
	opts.ClaimBase = cmp.Or(opts.ClaimBase, DefaultClaimBase)
	opts.SeccompDir = cmp.Or(opts.SeccompDir, DefaultSeccompDir)
	opts.Timings = newKeeperTimings(opts.Timings)
	pod := opts.Bundle.Pod
	if pod.UID == "" {
		pod.UID = types.UID(uuid.NewString())
	}
	k := &keeper{Options: opts, pod: pod, attempts: map[string]*attempt{}}
	k.facts = podyaml.Facts{
		Dir:      VolumeDir(opts.VolumeBase, string(pod.UID)),
		LogDir:   LogDir(opts.LogBase, pod.Namespace, pod.Name, string(pod.UID)),
		ClaimDir: opts.ClaimBase, SeccompDir: opts.SeccompDir,
	}
	k.gather()
	named := opts.Prefix != "" || len(pod.Spec.InitContainers)+len(pod.Spec.Containers) > 1
	k.out = newMultiplexer(named, opts.Prefix, opts.Out, opts.Err)
	return k
}

// newKeeperTimings fills in the defaults.
func newKeeperTimings(t Timings) Timings {
	return Timings{
		Usage:      cmp.Or(t.Usage, 10*time.Second),
		Poll:       cmp.Or(t.Poll, 200*time.Millisecond),
		BackoffMin: cmp.Or(t.BackoffMin, 10*time.Second),
		BackoffMax: cmp.Or(t.BackoffMax, 5*time.Minute),
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
	k, err := start(ctx, opts)
	if err != nil {
		return "", err
	}
	return k.sandboxID, nil
}

func start(ctx context.Context, opts Options) (_ *keeper, err error) {
	opts.Remove = true // what fails
	k := newKeeper(opts)
	if err := k.checkName(ctx); err != nil {
		return nil, err
	}
	if err := k.pullAll(ctx); err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			err = errors.Join(err, k.stopAll(ctx), k.finish(ctx))
		}
	}()
	if err := k.up(ctx); err != nil {
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
	volumes, err := k.Bundle.Volumes(&k.facts)
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
	if err := errors.Join(k.chooseIDs(ctx), k.learnFeatures(ctx)); err != nil {
		return err
	}
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

// Pod is one that runs, for those who tell it of others.
type Pod struct{ k *keeper }

// RewriteHosts writes the pod's hosts file anew: others have got addresses.
func (p *Pod) RewriteHosts() error { return p.k.writeHosts() }

func (k *keeper) writeHosts() error {
	var names []podyaml.Names
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

// say prints what the keeper does, with errors in the words for people.
func (k *keeper) say(format string, args ...any) {
	for i, arg := range args {
		if err, ok := arg.(error); ok {
			args[i] = errs.Message(err)
		}
	}
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
