package ioclass

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	"github.com/opencontainers/runtime-spec/specs-go"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/api/resource"
	"sigs.k8s.io/yaml"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/sys/sysfile"
)

// maxFile is how many bytes of the file of classes are read.
const maxFile = 1 << 20

// file is the file of classes.
type file struct {
	Classes map[string][]parameters
}

// parameters are those of some devices, or without Devices the weight of all others. Quantities are texts such as 50M.
type parameters struct {
	Devices           []string
	ThrottleReadBps   any
	ThrottleWriteBps  any
	ThrottleReadIOPS  any
	ThrottleWriteIOPS any
	Weight            any
}

// The weights that the kernel has.
const (
	minWeight = 10
	maxWeight = 1000
)

// BlockIO returns what a class of block IO is for the devices that the host has now. path is the file of classes, "" for
// none: then the error is a *NotEnabledError. Kind Unavailable when the file cannot be used, Invalid when it does not
// have the class.
func BlockIO(path, class string) (*specs.LinuxBlockIO, error) {
	if path == "" {
		return nil, &NotEnabledError{fmt.Sprintf("class of block IO %q: runtime.blockio_config_file names no file of classes", class)}
	}
	classes, err := readClasses(path)
	if err != nil {
		return nil, &fileError{fmt.Errorf("runtime.blockio_config_file %s: %w", path, err)}
	}
	list, ok := classes[class]
	if !ok {
		return nil, fmt.Errorf("no class of block IO is named %q; %s has %s: %w", class, path, strings.Join(slices.Sorted(maps.Keys(classes)), ", "), errs.Invalid)
	}
	made, err := join(class, list)
	if err != nil {
		return nil, &fileError{fmt.Errorf("runtime.blockio_config_file %s: %w", path, err)}
	}
	return made, nil
}

// join joins the parameters of a class.
func join(class string, list []parameters) (*specs.LinuxBlockIO, error) {
	made := &specs.LinuxBlockIO{}
	for i := range list {
		if err := list[i].addTo(made); err != nil {
			return nil, fmt.Errorf("in Classes[%q][%d].%w", class, i, err)
		}
	}
	return made, nil
}

// CheckBlockIO returns an error when the file of classes cannot be used. The error has kind Unavailable, and names the key
// of the configuration. With an empty path the error is nil.
func CheckBlockIO(path string) error {
	if err := CheckFile(path); err != nil {
		return &fileError{fmt.Errorf("runtime.blockio_config_file %s: %w", path, err)}
	}
	return nil
}

// CheckFile returns what is wrong with the file of classes, nil for none (path ""). Kind NotFound when it does not exist.
func CheckFile(path string) error {
	if path == "" {
		return nil
	}
	classes, err := readClasses(path)
	if err != nil {
		return err
	}
	for _, class := range slices.Sorted(maps.Keys(classes)) {
		if _, err := join(class, classes[class]); err != nil {
			return err
		}
	}
	return nil
}

// fileError is a fault of the file of classes. Its kind is Unavailable, whatever the fault is: the request has none.
type fileError struct{ err error }

func (e *fileError) Error() string { return e.err.Error() }

func (e *fileError) Unwrap() error { return errs.Unavailable }

func readClasses(path string) (map[string][]parameters, error) {
	data, err := sysfile.ReadRegular(path, maxFile+1)
	switch {
	case err != nil:
		return nil, err
	case len(data) > maxFile:
		return nil, fmt.Errorf("it is longer than %d bytes", maxFile)
	}
	return parseClasses(data)
}

func parseClasses(data []byte) (map[string][]parameters, error) {
	var f file
	if err := yaml.UnmarshalStrict(data, &f); err != nil {
		return nil, err
	}
	return f.Classes, nil
}

// addTo adds the parameters to a class. A later entry wins for a device that several match. The error begins with the
// name of the field.
func (p *parameters) addTo(class *specs.LinuxBlockIO) error {
	weight, err := quantity("Weight", p.Weight, minWeight, maxWeight)
	if err != nil {
		return err
	}
	throttles := []struct {
		name  string
		value any
		list  *[]specs.LinuxThrottleDevice
	}{
		{"ThrottleReadBps", p.ThrottleReadBps, &class.ThrottleReadBpsDevice},
		{"ThrottleWriteBps", p.ThrottleWriteBps, &class.ThrottleWriteBpsDevice},
		{"ThrottleReadIOPS", p.ThrottleReadIOPS, &class.ThrottleReadIOPSDevice},
		{"ThrottleWriteIOPS", p.ThrottleWriteIOPS, &class.ThrottleWriteIOPSDevice},
	}
	rates := make([]*uint64, len(throttles))
	for i, throttle := range throttles {
		if rates[i], err = quantity(throttle.name, throttle.value, 0, math.MaxInt64); err != nil {
			return err
		}
		if rates[i] != nil && p.Devices == nil {
			return fmt.Errorf("%s: needs Devices", throttle.name)
		}
	}
	if p.Devices == nil {
		if weight != nil {
			whole := uint16(*weight)
			class.Weight = &whole
		}
		return nil
	}
	devices, err := devicesOf(p.Devices)
	if err != nil {
		return err
	}
	for _, d := range devices {
		if weight != nil {
			setWeight(&class.WeightDevice, d, uint16(*weight))
		}
		for i, throttle := range throttles {
			if rates[i] != nil {
				setRate(throttle.list, d, *rates[i])
			}
		}
	}
	return nil
}

// quantity parses a number or a text such as 50M, nil for none.
func quantity(name string, value any, least, most int64) (*uint64, error) {
	var parsed resource.Quantity
	var err error
	switch value := value.(type) {
	case nil:
		return nil, nil //nolint:nilnil // none
	case string:
		if value == "" {
			return nil, nil //nolint:nilnil // none
		}
		parsed, err = resource.ParseQuantity(value)
	case float64:
		parsed, err = resource.ParseQuantity(fmt.Sprintf("%.0f", value))
	default:
		err = errors.New("want a number")
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %v: %w", name, value, err)
	}
	number := parsed.Value()
	if number < least || number > most {
		return nil, fmt.Errorf("%s: %d: want %d to %d", name, number, least, most)
	}
	positive := uint64(number)
	return &positive, nil
}

// devicesOf returns the disks that patterns of paths match, also through links. A pattern that matches none is no error:
// the file may be for several nodes. Partitions have no limits of their own.
func devicesOf(patterns []string) ([]specs.LinuxThrottleDevice, error) {
	var found []specs.LinuxThrottleDevice
	for i, pattern := range patterns {
		paths, err := filepath.Glob(pattern)
		if err != nil || !filepath.IsAbs(pattern) {
			return nil, fmt.Errorf("Devices[%d]: %q: want the absolute path of a device, with wildcards or without", i, pattern)
		}
		for _, path := range paths {
			info, err := os.Stat(path)
			if err != nil || info.Mode()&os.ModeDevice == 0 || info.Mode()&os.ModeCharDevice != 0 {
				continue
			}
			number := info.Sys().(*syscall.Stat_t).Rdev
			d := specs.LinuxThrottleDevice{}
			d.Major, d.Minor = int64(unix.Major(number)), int64(unix.Minor(number))
			if !isPartition(d.Major, d.Minor) {
				found = append(found, d)
			}
		}
	}
	return found, nil
}

func isPartition(major, minor int64) bool {
	_, err := os.Stat(fmt.Sprintf("/sys/dev/block/%d:%d/partition", major, minor))
	return err == nil
}

func setRate(list *[]specs.LinuxThrottleDevice, d specs.LinuxThrottleDevice, rate uint64) {
	d.Rate = rate
	if i := slices.IndexFunc(*list, func(known specs.LinuxThrottleDevice) bool { return known.Major == d.Major && known.Minor == d.Minor }); i >= 0 {
		(*list)[i] = d
		return
	}
	*list = append(*list, d)
}

func setWeight(list *[]specs.LinuxWeightDevice, d specs.LinuxThrottleDevice, weight uint16) {
	w := specs.LinuxWeightDevice{Weight: &weight}
	w.Major, w.Minor = d.Major, d.Minor
	if i := slices.IndexFunc(*list, func(known specs.LinuxWeightDevice) bool { return known.Major == d.Major && known.Minor == d.Minor }); i >= 0 {
		(*list)[i] = w
		return
	}
	*list = append(*list, w)
}
