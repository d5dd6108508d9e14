package churn

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/require"
	"github.com/berthrun/berth/test/harness"
	"github.com/berthrun/berth/test/harness/controlplane"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"sigs.k8s.io/yaml"
)

// namespace of all pods.
const namespace = "churn"

// pod is one pod of a scenario. All of its containers see its directory as /churn, and
// each writes its name into the file "starts" there when it starts.
type pod struct {
	*run
	name   string
	dir    string
	number int
	rng    *rand.Rand
	// uid and made are set by create.
	uid  string
	made time.Time
	// ordered is how many restarts of each container the scenario causes.
	ordered map[string]int32
}

// spec reads a PodSpec and adds the common parts: the node, the image, the directory.
func (p *pod) spec(text string) (corev1.PodSpec, error) {
	var spec corev1.PodSpec
	if err := yaml.UnmarshalStrict([]byte(text), &spec); err != nil {
		return spec, fmt.Errorf("%s: %w", text, err)
	}
	spec.NodeName = controlplane.Node
	spec.Volumes = append(spec.Volumes, corev1.Volume{
		Name: "churn", VolumeSource: corev1.VolumeSource{HostPath: &corev1.HostPathVolumeSource{Path: p.dir}},
	})
	for _, containers := range [][]corev1.Container{spec.InitContainers, spec.Containers} {
		for i := range containers {
			c := &containers[i]
			c.Command, c.Args = p.command(c.Name, c.Args), nil
			if c.Image == "" {
				c.Image = harness.Busybox
			}
			c.ImagePullPolicy = corev1.PullNever
			c.VolumeMounts = append(c.VolumeMounts, corev1.VolumeMount{Name: "churn", MountPath: "/churn"})
		}
	}
	return spec, nil
}

// command runs a script, given as args, that records its start.
func (p *pod) command(name string, script []string) []string {
	return []string{"/bin/sh", "-c", "echo " + name + " >> /churn/starts\n" + strings.Join(script, "\n")}
}

// create creates the pod through the API.
func (p *pod) create(ctx context.Context, text string) error {
	spec, err := p.spec(text)
	if err != nil {
		return err
	}
	if err := os.Mkdir(p.dir, 0o777); err != nil {
		return err
	}
	if err := os.Chmod(p.dir, 0o777); err != nil {
		return err
	}
	object := corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: p.name, Namespace: namespace, Labels: map[string]string{"app": p.name}, Annotations: map[string]string{"note": "seen"}},
		Spec:       spec,
	}
	p.made = time.Now()
	var made corev1.Pod
	if err := p.core.Post().Namespace(namespace).Resource("pods").Body(&object).Do(ctx).Into(&made); err != nil {
		return fmt.Errorf("cannot create the pod: %w", err)
	}
	p.uid = string(made.UID)
	return nil
}

// patch changes the pod or a subresource of it by a strategic merge.
func (p *pod) patch(ctx context.Context, body string, subresources ...string) error {
	return p.core.Patch(types.StrategicMergePatchType).Namespace(namespace).Resource("pods").Name(p.name).
		SubResource(subresources...).Body([]byte(body)).Do(ctx).Error()
}

// remove deletes the pod and returns its last state. A grace below 0 is the pod's own.
func (p *pod) remove(ctx context.Context, grace int64) (*corev1.Pod, error) {
	options := metav1.DeleteOptions{}
	if grace >= 0 {
		options.GracePeriodSeconds = &grace
	}
	err := p.core.Delete().Namespace(namespace).Resource("pods").Name(p.name).Body(&options).Do(ctx).Error()
	if err != nil && !apierrors.IsNotFound(err) {
		return nil, fmt.Errorf("cannot delete the pod: %w", err)
	}
	return p.seen.await(ctx, p.name, "the pod to be gone", func(_ *corev1.Pod, gone bool) (bool, error) { return gone, nil })
}

// await waits until done returns true for the pod. It fails when the pod is gone.
func (p *pod) await(ctx context.Context, what string, done func(*corev1.Pod) bool) (*corev1.Pod, error) {
	return p.seen.await(ctx, p.name, what, func(seen *corev1.Pod, gone bool) (bool, error) {
		if gone && !done(seen) {
			return false, errors.New("the pod is gone")
		}
		return done(seen), nil
	})
}

func (p *pod) awaitReady(ctx context.Context) error {
	_, err := p.await(ctx, "the pod to be ready", ready)
	return err
}

// awaitUp waits until the pod is ready and its program has written "up" into a file of that name.
// From then on the program handles signals.
func (p *pod) awaitUp(ctx context.Context) error {
	if err := p.awaitReady(ctx); err != nil {
		return err
	}
	return p.awaitLines(ctx, "up", "up")
}

func ready(seen *corev1.Pod) bool {
	return slices.ContainsFunc(seen.Status.Conditions, func(c corev1.PodCondition) bool {
		return c.Type == corev1.PodReady && c.Status == corev1.ConditionTrue
	})
}

// awaitEnd waits until the pod has ended, and checks its phase and the exit codes of
// its containers.
func (p *pod) awaitEnd(ctx context.Context, phase corev1.PodPhase, codes map[string]int32) (*corev1.Pod, error) {
	seen, err := p.await(ctx, "the pod to end", func(seen *corev1.Pod) bool {
		return seen.Status.Phase == corev1.PodSucceeded || seen.Status.Phase == corev1.PodFailed
	})
	if err != nil {
		return seen, err
	}
	if seen.Status.Phase != phase {
		err = fmt.Errorf("the pod is %s, want %s", seen.Status.Phase, phase)
	}
	return seen, errors.Join(err, p.checkCodes(seen, codes))
}

// checkCodes compares the codes of exited containers. A kubelet that ends between the removal of a
// container and the report of its code has lost it.
func (p *pod) checkCodes(seen *corev1.Pod, codes map[string]int32) error {
	var all []error
	for name, code := range codes {
		status := statusOf(seen, name)
		if status == nil || status.State.Terminated == nil {
			all = append(all, fmt.Errorf("container %s has not ended: %+v", name, status))
		} else if status.State.Terminated.Reason == "ContainerStatusUnknown" && p.disruptedSince(p.made, kubeletAway()) {
			continue
		} else if got := status.State.Terminated.ExitCode; got != code {
			all = append(all, fmt.Errorf("container %s ended with %d (%s), want %d", name, got, status.State.Terminated.Reason, code))
		}
	}
	return errors.Join(all...)
}

// restarted reports whether a container exists again after it ran. One that was created and never
// started counts as a restart too, but has not exited.
func (p *pod) restarted(seen *corev1.Pod, name string) bool {
	status := statusOf(seen, name)
	return status != nil && status.Ready && status.RestartCount > 0 &&
		(status.LastTerminationState.Terminated != nil || status.RestartCount > p.ordered[name])
}

// checkLast compares the code with which a container exited before its expected restart.
func (p *pod) checkLast(seen *corev1.Pod, name string, code int32) error {
	status := statusOf(seen, name)
	if status.RestartCount > p.ordered[name] {
		return nil // the last attempt was never started: see checkRestarts
	}
	last := status.LastTerminationState.Terminated
	if last == nil && p.disruptedSince(p.made, kubeletAway()) {
		// A kubelet removes all dead containers of a name but the newest as soon as it starts. It reports the ends of
		// those that it finds afterwards.
		removed, err := p.removedAttempt(name, status.RestartCount-1)
		if err != nil {
			return err
		}
		if removed {
			p.t.Logf("%s: the kubelet removed the first attempt of container %s before it reported how that ended", p.name, name)
			return nil
		}
	}
	if last == nil || last.ExitCode != code {
		return fmt.Errorf("container %s had ended so: %+v, want code %d", name, last, code)
	}
	return nil
}

// removedAttempt reports whether berth has removed an attempt of a container, as its log has it. Only the kubelet
// requests that while the pod exists.
func (p *pod) removedAttempt(name string, attempt int32) (bool, error) {
	log, err := os.ReadFile(filepath.Join(p.b.Dir, "berth.log"))
	if err != nil {
		return false, err
	}
	sandbox := regexp.MustCompile(` key=` + namespace + `/` + p.name + `/` + p.uid + `/0 id=(\w+) `).FindSubmatch(log)
	if sandbox == nil {
		return false, fmt.Errorf("the log of berth does not name the sandbox of pod %s", p.name)
	}
	return bytes.Contains(log, fmt.Appendf(nil, " job=remove key=%s/%s/%d ", sandbox[1], name, attempt)), nil
}

// statusOf finds a container's status of any kind, or nil.
func statusOf(seen *corev1.Pod, name string) *corev1.ContainerStatus {
	for _, status := range statuses(seen) {
		if status.Name == name {
			return &status
		}
	}
	return nil
}

func statuses(seen *corev1.Pod) []corev1.ContainerStatus {
	return slices.Concat(seen.Status.InitContainerStatuses, seen.Status.ContainerStatuses, seen.Status.EphemeralContainerStatuses)
}

// checkRestarts fails for every unexpected restart, as the containers themselves and as the kubelet
// counted. The kubelet's count may be higher if it or berth ended between a container's creation
// and its start: it retries, and counts that.
func (p *pod) checkRestarts() error {
	var all []error
	starts := map[string]int32{}
	for _, name := range p.lines("starts") {
		starts[name]++
	}
	for name, count := range starts {
		if count > p.ordered[name]+1 {
			all = append(all, fmt.Errorf("container %s started %d times, %d restarts were ordered", name, count, p.ordered[name]))
		}
	}
	if seen := p.seen.last(p.name); seen != nil {
		disrupted := p.disruptedSince(p.made, append(kubeletAway(), berthAway()...))
		for _, status := range statuses(seen) {
			if status.RestartCount > p.ordered[status.Name] && disrupted && starts[status.Name] <= p.ordered[status.Name]+1 {
				continue
			}
			if status.RestartCount != p.ordered[status.Name] {
				all = append(all, fmt.Errorf("the kubelet counts %d restarts of %s, %d were ordered; it had ended so: %+v",
					status.RestartCount, status.Name, p.ordered[status.Name], status.LastTerminationState.Terminated))
			}
		}
	}
	return errors.Join(all...)
}

// lines of a file in the pod's directory; none when it is absent.
func (p *pod) lines(file string) []string {
	data, err := os.ReadFile(filepath.Join(p.dir, file))
	if err != nil {
		return nil
	}
	return strings.Split(strings.TrimSpace(string(data)), "\n")
}

// awaitLines waits until a file of the pod's directory has these lines.
func (p *pod) awaitLines(ctx context.Context, file string, want ...string) error {
	return p.poll(ctx, fmt.Sprintf("%s to have %q", file, want), func(context.Context) error {
		if got := p.lines(file); !slices.Equal(got, want) {
			return fmt.Errorf("it has %q", got)
		}
		return nil
	})
}

// poll waits for what has no event: half a minute, longer on a slow machine.
func (p *pod) poll(ctx context.Context, what string, done func(context.Context) error) error {
	ctx, cancel := context.WithTimeout(ctx, require.Patience(30*time.Second))
	defer cancel()
	for {
		err := done(ctx)
		if err == nil {
			return nil
		}
		select {
		case <-time.After(100 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("timed out waiting for %s: %w", what, err)
		}
	}
}

// container returns the CRI status of a running container, and its cgroups.
func (p *pod) container(ctx context.Context, name string) (status *runtimeapi.ContainerStatusResponse, err error) {
	err = p.poll(ctx, "the runtime to report container "+name, func(ctx context.Context) error {
		seen := statusOf(p.seen.last(p.name), name)
		if seen == nil {
			return errors.New("the API does not know it")
		}
		_, id, _ := strings.Cut(seen.ContainerID, "://")
		status, err = p.b.Runtime.ContainerStatus(ctx, &runtimeapi.ContainerStatusRequest{ContainerId: id, Verbose: true})
		return err
	})
	return status, err
}

// checkSandbox fails if the pod has another sandbox than its first.
func (p *pod) checkSandbox(ctx context.Context) error {
	return p.poll(ctx, "the pod's one sandbox", func(ctx context.Context) error {
		list, err := p.b.Runtime.ListPodSandbox(ctx, &runtimeapi.ListPodSandboxRequest{
			Filter: &runtimeapi.PodSandboxFilter{LabelSelector: map[string]string{"io.kubernetes.pod.uid": p.uid}},
		})
		if err != nil {
			return err
		}
		for _, sandbox := range list.Items {
			if sandbox.Metadata.Attempt != 0 {
				return fmt.Errorf("sandbox %s is attempt %d", sandbox.Id, sandbox.Metadata.Attempt)
			}
		}
		return nil
	})
}

// apiLog is a container's log as the API server gets it from the kubelet.
func (p *pod) apiLog(ctx context.Context, container string) (string, error) {
	data, err := p.core.Get().Namespace(namespace).Resource("pods").Name(p.name).SubResource("log").
		VersionedParams(&corev1.PodLogOptions{Container: container}, scheme.ParameterCodec).DoRaw(ctx)
	return string(data), err
}
