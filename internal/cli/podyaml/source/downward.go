package source

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"

	"github.com/berthrun/berth/internal/cli/podyaml/podspec"
)

// field is one of the pod's own, by its path, as a variable has it.
func (d *Documents) field(path string, node *Node) (string, error) {
	switch path {
	case "spec.nodeName":
		return node.Name, nil
	case "spec.serviceAccountName":
		return cmp.Or(d.Pod.Spec.ServiceAccountName, "default"), nil
	case "status.podIP":
		return first(node.PodIPs), nil
	case "status.podIPs":
		return strings.Join(node.PodIPs, ","), nil
	case "status.hostIP":
		return first(node.HostIPs), nil
	case "status.hostIPs":
		return strings.Join(node.HostIPs, ","), nil
	case "metadata.labels", "metadata.annotations":
		return "", fmt.Errorf("fieldRef %q is for volumes: a variable takes one of them, %s['KEY']", path, path)
	}
	return d.metadata(path)
}

// metadata is what variables and files of volumes can have alike.
func (d *Documents) metadata(path string) (string, error) {
	switch path {
	case "metadata.name":
		return d.Pod.Name, nil
	case "metadata.namespace":
		return d.Pod.Namespace, nil
	case "metadata.uid":
		return string(d.Pod.UID), nil
	case "metadata.labels":
		return listing(d.Pod.Labels), nil
	case "metadata.annotations":
		return listing(d.Pod.Annotations), nil
	}
	for prefix, from := range map[string]map[string]string{
		"metadata.labels['": d.Pod.Labels, "metadata.annotations['": d.Pod.Annotations,
	} {
		if rest, ok := strings.CutPrefix(path, prefix); ok && strings.HasSuffix(rest, "']") {
			return from[strings.TrimSuffix(rest, "']")], nil
		}
	}
	return "", fmt.Errorf("fieldRef %q is not honoured", path)
}

// listing is a map as a file has it: a sorted line key="value" for each.
func listing(of map[string]string) string {
	var lines []string
	for _, key := range slices.Sorted(maps.Keys(of)) {
		lines = append(lines, key+"="+strconv.Quote(of[key]))
	}
	return strings.Join(lines, "\n")
}

func first(list []string) string {
	if len(list) == 0 {
		return ""
	}
	return list[0]
}

// resource is a limit or request of a container, in units of the divisor, rounded up.
func (d *Documents) resource(ref *corev1.ResourceFieldSelector, own *corev1.Container, node *Node) (string, error) {
	of := own
	if ref.ContainerName != "" {
		if of = podspec.Container(d.Pod, ref.ContainerName); of == nil {
			return "", fmt.Errorf("there is no container %q", ref.ContainerName)
		}
	}
	if of == nil {
		return "", fmt.Errorf("resourceFieldRef of a volume needs a containerName")
	}
	which, name, _ := strings.Cut(ref.Resource, ".")
	list := of.Resources.Requests
	if which == "limits" {
		list = of.Resources.Limits
	} else if which != "requests" {
		return "", fmt.Errorf("resource %q is neither limits.NAME nor requests.NAME", ref.Resource)
	}
	divisor := ref.Divisor
	if divisor.IsZero() {
		divisor = resource.MustParse("1")
	}
	if divisor.Sign() < 0 {
		return "", fmt.Errorf("divisor %s is not positive", divisor.String())
	}
	kind := corev1.ResourceName(name)
	quantity, there := list[kind]
	if !there && which == "requests" {
		quantity, there = of.Resources.Limits[kind] // as the API server fills it in
	}
	switch {
	case kind == corev1.ResourceCPU:
		milli := quantity.MilliValue()
		if !there && which == "limits" {
			milli = node.Capacity.MilliCPU
		}
		return inUnits(milli, divisor.MilliValue()), nil
	case kind == corev1.ResourceMemory, kind == corev1.ResourceEphemeralStorage, strings.HasPrefix(name, corev1.ResourceHugePagesPrefix):
		value := quantity.Value()
		if !there && which == "limits" {
			value = map[corev1.ResourceName]int64{
				corev1.ResourceMemory: node.Capacity.Memory, corev1.ResourceEphemeralStorage: node.Capacity.Storage,
			}[kind]
		}
		return inUnits(value, divisor.Value()), nil
	}
	return "", fmt.Errorf("resource %q is not honoured", ref.Resource)
}

// inUnits divides and rounds up.
func inUnits(value, unit int64) string {
	unit = max(unit, 1)
	units := value / unit
	if value%unit > 0 {
		units++
	}
	return strconv.FormatInt(units, 10)
}
