// Package cdi gives containers what CDI specs on the node say of devices: nodes,
// mounts, variables and hooks.
//
// Specs are read anew for each container that asks for a device: drivers write them
// a moment before, and a node has few.
package cdi

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/opencontainers/runtime-spec/specs-go"
	"tags.cncf.io/container-device-interface/pkg/cdi"

	"github.com/berthrun/berth/internal/errs"
)

// Devices are all that the specs of the node describe.
type Devices struct {
	cache *cdi.Cache
}

// Read reads the specs in dirs; of two with one device that of the later directory
// wins. A spec that is broken has no devices: Inject tells of it.
func Read(dirs []string) (*Devices, error) {
	cache, err := cdi.NewCache(cdi.WithSpecDirs(dirs...), cdi.WithAutoRefresh(false))
	if err != nil {
		return nil, fmt.Errorf("cannot read the CDI specs: %w", err)
	}
	return &Devices{cache}, nil
}

// Inject adds the devices of these names to spec. Kind Invalid, naming the field,
// when one is described nowhere or cannot be used; spec is of no use then.
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

// maxFaults is how many broken specs an error tells of.
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
