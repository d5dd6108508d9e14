// Package cdi adds to containers what CDI specs on the node list for a device: nodes,
// mounts, variables and hooks.
//
// Specs are read again for each container with a CDI device: drivers write them just before,
// and a node has few.
package cdi

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"
	cdispecs "tags.cncf.io/container-device-interface/specs-go"

	"github.com/berthrun/berth/internal/errs"
)

// Devices are all that the specs of the node describe.
type Devices struct {
	cache *cdi.Cache
}

// Read reads the specs in dirs. When two describe one device, that of the later directory
// wins. A broken spec has no devices: Inject reports it.
func Read(dirs []string) (*Devices, error) {
	cdi.SetSpecValidator(noNulls{})
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, fmt.Errorf("cannot read the CDI specs: %w", err)
	}
	return &Devices{cache}, nil
}

// Inject adds the devices of these names to spec. Kind Invalid, naming the field,
// when no spec describes one or it cannot be used. The caller must drop spec then.
func (d *Devices) Inject(spec *specs.Spec, names []string) error {
	missing, err := d.cache.InjectDevices(spec, names...)
	if err == nil {
		return nil
	}
	if len(missing) > 0 {
		err = fmt.Errorf("no CDI spec describes %s", strings.Join(missing, ", "))
	}
	return fmt.Errorf("config.CDI_devices: %w: %w", errors.Join(err, d.faults()), errs.Invalid)
}

// maxFaults is how many broken specs an error names.
const maxFaults = 3

// faults are the specs that could not be read.
func (d *Devices) faults() error {
	byFile := d.cache.GetErrors()
	var files []string
	for file := range byFile {
		files = append(files, file)
	}
	slices.Sort(files)
	var faults []error
	for _, file := range files[:min(len(files), maxFaults)] {
		faults = append(faults, fmt.Errorf("%s: %w", file, errors.Join(byFile[file]...)))
	}
	return errors.Join(faults...)
}

// noNulls refuses specs with a null in a list, for which the library panics.
type noNulls struct{}

// Validate is called by the library before it reads a spec itself.
func (noNulls) Validate(spec *cdispecs.Spec) error {
	all := []error{nullIn("containerEdits", &spec.ContainerEdits)}
	for i := range spec.Devices {
		all = append(all, nullIn(fmt.Sprintf("devices[%d].containerEdits", i), &spec.Devices[i].ContainerEdits))
	}
	return errors.Join(all...)
}

func nullIn(field string, edits *cdispecs.ContainerEdits) error {
	for list, at := range map[string]int{
		"deviceNodes": slices.Index(edits.DeviceNodes, nil), "netDevices": slices.Index(edits.NetDevices, nil),
		"hooks": slices.Index(edits.Hooks, nil), "mounts": slices.Index(edits.Mounts, nil),
	} {
		if at >= 0 {
			return fmt.Errorf("%s.%s[%d] is null", field, list, at)
		}
	}
	return nil
}
