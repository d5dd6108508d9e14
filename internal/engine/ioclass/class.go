// Package ioclass has the classes of block IO and of RDT (cache and memory bandwidth) that pods choose by
// annotations, as with containerd and CRI-O. The operator defines the classes of block IO in a file, in the format of
// goresctrl, and those of RDT as groups of the kernel's resctrl file system.
package ioclass

import (
	"strconv"

	"github.com/berthrun/berth/internal/errs"
)

// annotations are those by which a class is chosen, the first before the others.
type annotations struct {
	// container is an annotation of the container, ofPod one of the pod for all of its containers, and ofContainer
	// the beginning of one of the pod for one container.
	container, ofContainer, ofPod string
}

func blockIO() annotations {
	const pod = "blockio.resources.beta.kubernetes.io/"
	return annotations{"io.kubernetes.cri.blockio-class", pod + "container.", pod + "pod"}
}

func rdt() annotations {
	const pod = "rdt.resources.beta.kubernetes.io/"
	return annotations{"io.kubernetes.cri.rdt-class", pod + "container.", pod + "pod"}
}

// Container is what annotations are read of.
type Container struct {
	// Name is that of the container in its pod.
	Name string
	// Annotations are the container's, Pod those of its pod.
	Annotations, Pod map[string]string
}

// Chosen is a class that an annotation names.
type Chosen struct {
	Name string
	// Field is the annotation as a field of the request.
	Field string
}

// BlockIOOf returns the class of block IO of a container, nil for none.
func BlockIOOf(c *Container) *Chosen { return blockIO().of(c) }

// RDTOf returns the class of RDT of a container, nil for none.
func RDTOf(c *Container) *Chosen { return rdt().of(c) }

func (a annotations) of(c *Container) *Chosen {
	for _, place := range []struct {
		field, key string
		values     map[string]string
	}{
		{"config.annotations", a.container, c.Annotations},
		{"sandbox_config.annotations", a.ofContainer + c.Name, c.Pod},
		{"sandbox_config.annotations", a.ofPod, c.Pod},
	} {
		if name, ok := place.values[place.key]; ok {
			return &Chosen{name, place.field + "[" + strconv.Quote(place.key) + "]"}
		}
	}
	return nil
}

// NotEnabledError is the error of a class where the operator has defined none. Its kind is Unsupported.
type NotEnabledError struct{ text string }

func (e *NotEnabledError) Error() string { return e.text }

// Unwrap returns the error's kind.
func (e *NotEnabledError) Unwrap() error { return errs.Unsupported }
