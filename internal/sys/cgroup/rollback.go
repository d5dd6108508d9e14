package cgroup

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"slices"
	"strconv"

	"github.com/opencontainers/cgroups"
)

// group is a cgroup whose limits can be written.
type group interface {
	Set(res *cgroups.Resources) error
}

// change writes limits to the files of a group, and restores the old values if it cannot
// write all. A request whose context has ended by then was answered already, and its limits
// are not in the record: change treats it as failed.
func change(ctx context.Context, g group, files []string, systemd bool, to *cgroups.Resources) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	before, err := readValues(files)
	if err != nil {
		return err
	}
	if err = g.Set(to); err == nil {
		err = ctx.Err()
	}
	if err == nil {
		return nil
	}
	if left := before.restore(g, systemd); left != nil {
		return fmt.Errorf("%w; of the limits written before that, some hold although nobody recorded them: %w", err, left)
	}
	return fmt.Errorf("%w; all limits are as they were", err)
}

// value is the old value of a cgroup's file.
type value struct {
	path string
	data []byte
}

type values []value

// readValues leaves out the files that are not there.
func readValues(files []string) (values, error) {
	var all values
	for _, path := range files {
		data, err := os.ReadFile(path)
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, fmt.Errorf("cannot read what the limits are: %w", err)
		}
		all = append(all, value{path, data})
	}
	return all, nil
}

// restore writes the old values. The error names the files that refuse them.
func (v values) restore(g group, systemd bool) error {
	left := slices.DeleteFunc(slices.Clone(v), value.holds)
	var systemdErr error
	if systemd && len(left) > 0 {
		// Without this systemd writes the limits that failed when it next applies them.
		if err := g.Set(left.resources()); err != nil {
			systemdErr = fmt.Errorf("cannot set the former limits in systemd: %w", err)
		}
	}
	// The kernel takes some values only after others: memory before memory and swap,
	// the quota before the period.
	for {
		var failed values
		var errList []error
		for _, one := range left {
			if err := one.write(); err != nil {
				failed, errList = append(failed, one), append(errList, err)
			}
		}
		if len(failed) == 0 || len(failed) == len(left) {
			return errors.Join(append(errList, systemdErr)...)
		}
		left = failed
	}
}

func (v value) holds() bool {
	data, err := os.ReadFile(v.path)
	return err == nil && bytes.Equal(data, v.data)
}

func (v value) write() error {
	f, err := os.OpenFile(v.path, os.O_WRONLY|os.O_TRUNC, 0)
	if err != nil {
		return err
	}
	data := v.data
	if len(data) == 0 {
		data = []byte("\n") // an empty write is none
	}
	_, err = f.Write(data)
	return errors.Join(err, f.Close())
}

// resources returns the values in the form that systemd takes.
func (v values) resources() *cgroups.Resources {
	res := &cgroups.Resources{SkipDevices: true, SkipFreezeOnSet: true}
	for _, one := range v {
		text := string(bytes.TrimSpace(one.data))
		number, err := strconv.ParseInt(text, 10, 64)
		if number >= math.MaxInt64/2 {
			number = -1 // v1 reports this for no limit
		}
		switch name := filepath.Base(one.path); {
		case text == "":
		case name == "memory.limit_in_bytes" && err == nil:
			res.Memory = number
		case name == "cpu.shares" && err == nil:
			res.CpuShares = uint64(number)
		case name == "cpu.cfs_quota_us" && err == nil:
			res.CpuQuota = number
		case name == "cpu.cfs_period_us" && err == nil:
			res.CpuPeriod = uint64(number)
		case slices.Contains(filesV2(), name):
			if res.Unified == nil {
				res.Unified = map[string]string{}
			}
			res.Unified[name] = text
		}
	}
	return res
}

func filesV2() []string {
	return []string{"memory.max", "memory.swap.max", "cpu.weight", "cpu.max", "cpuset.cpus", "cpuset.mems"}
}

// filesOf are the files that limits are written to.
func filesOf(paths Paths, res *cgroups.Resources) []string {
	var files []string
	add := func(controller string, names ...string) {
		for _, name := range names {
			if dir := paths[controller]; dir != "" {
				files = append(files, filepath.Join(dir, name))
			}
		}
	}
	if paths.unified() {
		add("", filesV2()...)
		for name := range res.Unified {
			if file := filepath.Join(paths[""], name); !slices.Contains(files, file) {
				files = append(files, file)
			}
		}
	} else {
		add("memory", "memory.limit_in_bytes", "memory.memsw.limit_in_bytes")
		add("cpu", "cpu.shares", "cpu.cfs_quota_us", "cpu.cfs_period_us")
		add("cpuset", "cpuset.cpus", "cpuset.mems")
	}
	for _, limit := range res.HugetlbLimit {
		prefix := "hugetlb." + limit.Pagesize
		if paths.unified() {
			add("", prefix+".max", prefix+".rsvd.max")
		} else {
			add("hugetlb", prefix+".limit_in_bytes", prefix+".rsvd.limit_in_bytes")
		}
	}
	return files
}
