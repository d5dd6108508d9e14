// Package workload reads what makes pods: Pods, Deployments, StatefulSets, DaemonSets, Jobs and
// their like, and makes their pods.
package workload

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

	"github.com/berthrun/berth/internal/cli/podyaml/document"
	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
)

// Workload is a Pod, or what makes pods from a template.
type Workload struct {
	// Kind and Name are the document's.
	Kind, Name, Namespace string
	// Ordered: a pod starts when the one before it is ready.
	Ordered bool
	// Parallel is how many run at once; 0: all.
	Parallel int
	// Retries is how many pods of a Job may fail before the Job has failed.
	Retries int
	// Deadline of a Job; 0: none.
	Deadline time.Duration
	// MinReady is how long a pod of an ordered one is ready before the next one starts.
	MinReady        time.Duration
	replicas, first int
	indexed         bool
	// Suspended is the field that keeps it from making pods, "" for none.
	Suspended string
	// selector is what the template's labels must match, nil for anything.
	selector *metav1.LabelSelector
	claims   []corev1.PersistentVolumeClaim
	service  string
	template *corev1.PodTemplateSpec
	// Place of the template in the file.
	Place document.Place
}

// IsJob reports whether the pods of the workload run to completion.
func (w *Workload) IsJob() bool { return w.Kind == "Job" }

// maxReplicas bounds what one command runs.
const maxReplicas = 250

func (w *Workload) of(doc *document.Document, name, namespace, prefix string, t *corev1.PodTemplateSpec) {
	w.Kind, _ = doc.Tree["kind"].(string)
	w.Name, w.Namespace, w.template, w.Place, w.replicas = name, namespace, t, doc.Place.Within(prefix), 1
}

func (w *Workload) stateful(s *appsv1.StatefulSet) {
	w.replicas, w.selector = orOne(s.Spec.Replicas), s.Spec.Selector
	w.claims, w.service = s.Spec.VolumeClaimTemplates, s.Spec.ServiceName
	w.Ordered = s.Spec.PodManagementPolicy != appsv1.ParallelPodManagement
	w.MinReady = time.Duration(s.Spec.MinReadySeconds) * time.Second
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
	case podspec.IsTrue(spec.Suspend):
		w.Suspended = "spec.suspend"
	case w.Parallel == 0:
		w.Suspended = "spec.parallelism"
	}
	f := document.Faults{Place: w.Place.Whole()}
	if w.Parallel < 0 || w.Retries < 0 || w.Deadline < 0 {
		f.Add("spec", "parallelism, backoffLimit and activeDeadlineSeconds are not negative")
	}
	switch spec.Template.Spec.RestartPolicy {
	case corev1.RestartPolicyNever, corev1.RestartPolicyOnFailure:
	default:
		f.Add("spec.template.spec.restartPolicy", "a Job needs OnFailure or Never")
	}
	return f.Err()
}

// Expand makes the workload's pods, in the order of their ordinals.
func (w *Workload) Expand() ([]*corev1.Pod, error) {
	f := document.Faults{Place: w.Place.Whole()}
	if w.replicas < 0 || w.replicas > maxReplicas || w.first < 0 {
		f.Add("spec.replicas", "%d pods: want between 0 and %d", w.replicas, maxReplicas)
		return nil, f.Err()
	}
	if w.template == nil {
		f.Add("spec.template", "there is none")
		return nil, f.Err()
	}
	if w.Kind != "Pod" && w.Name == "" {
		f.Add("metadata.name", "it is empty")
		return nil, f.Err()
	}
	if w.MinReady < 0 {
		f.Add("spec.minReadySeconds", "it is negative")
		return nil, f.Err()
	}
	if why := w.selects(); why != nil {
		f.Add("spec.selector", "%v", why)
		return nil, f.Err()
	}
	pods := make([]*corev1.Pod, 0, w.replicas)
	for ordinal := w.first; ordinal < w.first+w.replicas; ordinal++ {
		pods = append(pods, w.pod(ordinal))
	}
	return pods, nil
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
