package podyaml

import (
	"errors"
	"fmt"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	batchv1 "k8s.io/api/batch/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
)

// Workload is a Pod, or what makes pods from a template.
type Workload struct {
	// Kind and Name are the document's.
	Kind, Name, Namespace string
	// Pods in the order of their ordinals. A Pod document has one.
	Pods []*Bundle
	// Ordered: a pod starts when the one before it is ready.
	Ordered bool
	// Parallel is how many run at once; 0: all.
	Parallel int
	// Retries is how many pods of a Job may fail before the Job has failed.
	Retries int
	// Deadline of a Job; 0: none.
	Deadline time.Duration
	// Settled is how long a pod of an ordered one is ready before the next one starts.
	Settled         time.Duration
	replicas, first int
	indexed         bool
	// suspended is the field that keeps it from making pods, "" for none.
	suspended string
	// selector is what the template's labels must match, nil for anything.
	selector *metav1.LabelSelector
	claims   []corev1.PersistentVolumeClaim
	service  string
	template *corev1.PodTemplateSpec
	place    place
}

// IsJob tells of pods that are to end.
func (w *Workload) IsJob() bool { return w.Kind == "Job" }

// maxReplicas bounds what one command runs.
const maxReplicas = 250

func (w *Workload) of(doc *document, name, namespace, prefix string, t *corev1.PodTemplateSpec) {
	w.Kind, _ = doc.tree["kind"].(string)
	w.Name, w.Namespace, w.template, w.place, w.replicas = name, namespace, t, doc.place.within(prefix), 1
}

func (w *Workload) stateful(s *appsv1.StatefulSet) {
	w.replicas, w.selector = orOne(s.Spec.Replicas), s.Spec.Selector
	w.claims, w.service = s.Spec.VolumeClaimTemplates, s.Spec.ServiceName
	w.Ordered = s.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
	w.Settled = time.Duration(s.Spec.MinReadySeconds) * time.Second
	if s.Spec.Ordinals != nil {
		w.first = int(s.Spec.Ordinals.Start)
	}
}

// defaultBackoffLimit of a Job.
const defaultBackoffLimit = 6

func (w *Workload) job(j *batchv1.Job) error {
	spec := &j.Spec
	w.Parallel = orOne(spec.Parallelism)
	w.replicas = w.Parallel
	if spec.Completions != nil {
		w.replicas = int(*spec.Completions)
	}
	w.Retries = defaultBackoffLimit
	if spec.BackoffLimit != nil {
		w.Retries = int(*spec.BackoffLimit)
	}
	if spec.ActiveDeadlineSeconds != nil {
		w.Deadline = time.Duration(*spec.ActiveDeadlineSeconds) * time.Second
	}
	w.indexed = spec.CompletionMode != nil && *spec.CompletionMode == batchv1.IndexedCompletion
	switch {
	case isTrue(spec.Suspend):
		w.suspended = "spec.suspend"
	case w.Parallel == 0:
		w.suspended = "spec.parallelism"
	}
	f := faults{place: place{root: w.place.root}}
	if w.Parallel < 0 || w.Retries < 0 || w.Deadline < 0 {
		f.add("spec", "parallelism, backoffLimit and activeDeadlineSeconds are not negative")
	}
	switch spec.Template.Spec.RestartPolicy {
	case corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure:
	default:
		f.add("spec.template.spec.restartPolicy", "a Job wants OnFailure or Never")
	}
	return f.err()
}

// expand makes the workload's pods.
func (w *Workload) expand(docs *documents) error {
	f := faults{place: place{root: w.place.root}}
	if w.replicas < 0 || w.replicas > maxReplicas || w.first < 0 {
		f.add("spec.replicas", "%d pods are not between 0 and %d", w.replicas, maxReplicas)
		return f.err()
	}
	if w.template == nil {
		f.add("spec.template", "there is none")
		return f.err()
	}
	if w.Kind != "Pod" && w.Name == "" {
		f.add("metadata.name", "it is empty")
		return f.err()
	}
	if w.Settled < 0 {
		f.add("spec.minReadySeconds", "it is negative")
		return f.err()
	}
	if why := w.selects(); why != nil {
		f.add("spec.selector", "%v", why)
		return f.err()
	}
	var failed []error
	for ordinal := w.first; ordinal < w.first+w.replicas; ordinal++ {
		b, err := docs.bundle(w.pod(ordinal), w.place)
		if err != nil {
			failed = append(failed, err)
			break // the others have the same faults
		}
		w.Pods = append(w.Pods, b)
	}
	return errors.Join(failed...)
}

// selects returns why the workload would not find its own pods, nil where it does or
// names no selector.
func (w *Workload) selects() error {
	if w.selector == nil {
		return nil
	}
	selector, err := metav1.LabelSelectorAsSelector(w.selector)
	if err != nil {
		return err
	}
	if !selector.Matches(labels.Set(w.template.Labels)) {
		return errors.New("it does not match the labels of spec.template")
	}
	return nil
}

// pod makes the pod of an ordinal.
func (w *Workload) pod(ordinal int) *corev1.Pod {
	t := w.template.DeepCopy()
	pod := &corev1.Pod{ObjectMeta: t.ObjectMeta, Spec: t.Spec}
	if w.Kind == "Pod" {
		return pod
	}
	index := strconv.Itoa(ordinal)
	pod.ObjectMeta = metav1.ObjectMeta{
		Name: w.Name + "-" + index, Namespace: w.Namespace, Labels: t.Labels, Annotations: t.Annotations,
	}
	if w.Kind == "StatefulSet" {
		w.statefulPod(pod, index)
	}
	if w.IsJob() {
		w.jobPod(pod, index)
	}
	return pod
}

// statefulPod gives a pod of a StatefulSet its name, its claims and its place in the
// Service.
func (w *Workload) statefulPod(pod *corev1.Pod, index string) {
	setLabel(&pod.Labels, appsv1.StatefulSetPodNameLabel, pod.Name)
	setLabel(&pod.Labels, appsv1.PodIndexLabel, index)
	pod.Spec.Hostname, pod.Spec.Subdomain = pod.Name, w.service
	for i := range w.claims {
		name := w.claims[i].Name
		source := corev1.VolumeSource{PersistentVolumeClaim: &corev1.PersistentVolumeClaimVolumeSource{
			ClaimName: name + "-" + pod.Name,
		}}
		replaced := false
		for v := range pod.Spec.Volumes {
			if pod.Spec.Volumes[v].Name == name {
				pod.Spec.Volumes[v].VolumeSource, replaced = source, true
			}
		}
		if !replaced {
			pod.Spec.Volumes = append(pod.Spec.Volumes, corev1.Volume{Name: name, VolumeSource: source})
		}
	}
}

// jobPod gives a pod of a Job the Job's labels, and that of an indexed one its index.
func (w *Workload) jobPod(pod *corev1.Pod, index string) {
	setLabel(&pod.Labels, batchv1.JobNameLabel, w.Name)
	if !w.indexed {
		return
	}
	setLabel(&pod.Labels, batchv1.JobCompletionIndexAnnotation, index)
	setLabel(&pod.Annotations, batchv1.JobCompletionIndexAnnotation, index)
	pod.Spec.Hostname = pod.Name
	for _, list := range [][]corev1.Container{pod.Spec.InitContainers, pod.Spec.Containers} {
		for i := range list {
			list[i].Env = append(list[i].Env, corev1.EnvVar{Name: "JOB_COMPLETION_INDEX", Value: index})
		}
	}
}

func setLabel(all *map[string]string, name, value string) {
	if *all == nil {
		*all = map[string]string{}
	}
	(*all)[name] = value
}

// String names the workload for people.
func (w *Workload) String() string { return fmt.Sprintf("%s %s", w.Kind, w.Name) }
