package request

import (
	"slices"

	runtimeapi "k8s.io/cri-api/pkg/apis/runtime/v1"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	"tags.cncf.io/container-device-interface/pkg/parser"

	"github.com/berthrun/berth/internal/ocispec/fielderror"
)

// maxCDIDevices bounds how many devices one container may ask for.
const maxCDIDevices = 1024

// CDIDevices lists the CDI devices that a container asks for ("vendor.com/class=name"),
// each once: those of the field, then those of the annotations that came before it
// (cdi.k8s.io/*).
func CDIDevices(config *runtimeapi.ContainerConfig) ([]string, error) {
	var names []string
	add := func(field, name string) error {
		if !parser.IsQualifiedName(name) {
			return fielderror.Invalid(field, "%q is not a CDI device (vendor.com/class=name)", name)
		}
		if !slices.Contains(names, name) {
			names = append(names, name)
		}
		if len(names) > maxCDIDevices {
			return fielderror.Invalid(field, "more than %d devices", maxCDIDevices)
		}
		return nil
	}
	for i, device := range config.GetCDIDevices() {
		if err := add(fielderror.Index("config.CDI_devices", i, "name"), device.GetName()); err != nil {
			return nil, err
		}
	}
	_, annotated, err := cdi.ParseAnnotations(config.GetAnnotations())
	if err != nil {
		return nil, fielderror.Invalid("config.annotations", "%v", err)
	}
	slices.Sort(annotated) // a map gave their order
	for _, name := range annotated {
		if err := add("config.annotations", name); err != nil {
			return nil, err
		}
	}
	return names, nil
}
