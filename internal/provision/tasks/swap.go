package tasks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"path"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// Swap turns the machine's swap on or off. Off turns off active swap, comments out its lines in
// /etc/fstab, and has zram-generator make none at boot.
type Swap struct {
	M provision.Meta
	// On: true for File in use; false for no swap at all.
	On bool
	// File is a swap file of Size bytes; Apply creates it if it does not exist.
	File string
	Size int64
}

// ID is "swap".
func (s Swap) ID() string { return "swap" }

// Meta returns M.
func (s Swap) Meta() provision.Meta { return s.M }

const (
	fstab = "/etc/fstab"
	// zramConf replaces the distribution's configuration of zramGenerator, which without sections makes nothing
	// (zram-generator.conf(5)).
	zramConf      = "/etc/systemd/zram-generator.conf"
	zramContent   = "# By berth node: no swap in compressed memory.\n"
	zramGenerator = "/usr/lib/systemd/system-generators/zram-generator"
	// allSwaps is the object that stands for all swap of the machine except that in compressed memory, which zramSwaps stands
	// for: journals of earlier versions do not say whether that was on.
	allSwaps  = "all"
	zramSwaps = "zram"
	zramPath  = "/dev/zram"
)

// swapsOf lists those of swaps that the object named name stands for.
func swapsOf(name string, swaps []string) []string {
	return slices.DeleteFunc(slices.Clone(swaps), func(path string) bool {
		return strings.HasPrefix(path, zramPath) != (name == zramSwaps)
	})
}

// Objects are the files that turn swap on at boot and all swap, or the swap file.
func (s Swap) Objects(_ context.Context, host provision.Host) ([]provision.Object, error) {
	if s.On {
		if s.Size <= 0 {
			return nil, fmt.Errorf("size %d of swap file %s: %w", s.Size, s.File, errs.Invalid)
		}
		return []provision.Object{{Kind: kindSwap, Name: s.File}}, checkPath(s.File)
	}
	var list []provision.Object
	wanted, err := s.files(host)
	if err != nil {
		return nil, err
	}
	for _, file := range wanted {
		list = append(list, provision.Object{Kind: kindFile, Name: file.path})
	}
	return append(list, provision.Object{Kind: kindSwap, Name: allSwaps}, provision.Object{Kind: kindSwap, Name: zramSwaps}), nil
}

func (s Swap) swaps(host provision.Host) ([]string, error) {
	if !host.Live() {
		return nil, nil
	}
	return host.Kernel().Swaps()
}

// files are those that turn swap on at boot, as they should be: /etc/fstab if it exists and is no
// link, and the configuration of
// zram-generator if the machine has it.
func (s Swap) files(host provision.Host) ([]desiredFile, error) {
	var list []desiredFile
	if provision.Exists(host.Files(), zramGenerator) {
		list = append(list, desiredFile{path: zramConf, content: zramContent, mode: defaultFileMode})
	}
	r, err := host.Files().Open(fstab)
	if errors.Is(err, errs.NotFound) {
		return list, nil
	}
	if err != nil {
		return nil, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", fstab, err)
	}
	info, err := host.Files().Stat(fstab)
	if err != nil {
		return nil, err
	}
	lines, on := strings.SplitAfter(string(data), "\n"), false
	for i, line := range lines {
		if words := strings.Fields(line); len(words) >= 3 && !strings.HasPrefix(words[0], "#") && words[2] == "swap" {
			lines[i], on = "# off by berth node: "+line, true
		}
	}
	if err := provision.RefuseLink(host.Files(), fstab); err != nil {
		if !on {
			return list, nil
		}
		return nil, err
	}
	return append(list, desiredFile{
		path: fstab, content: strings.Join(lines, ""), mode: info.Mode,
		owner: strconv.Itoa(info.UID), group: strconv.Itoa(info.GID),
	}), nil
}

// Check compares the active swap and the swap at boot.
func (s Swap) Check(_ context.Context, host provision.Host) (provision.Change, error) {
	swaps, err := s.swaps(host)
	if err != nil {
		return provision.Change{}, err
	}
	if s.On {
		if !host.Live() || slices.Contains(swaps, s.File) {
			return provision.Change{}, nil
		}
		return change(provision.Diff{
			Object: provision.Object{Kind: kindSwap, Name: s.File}, Action: provision.Create, Reason: "is not in use",
		}), nil
	}
	var diffs []provision.Diff
	wanted, err := s.files(host)
	if err != nil {
		return provision.Change{}, err
	}
	for _, file := range wanted {
		d, err := file.check(host)
		if err != nil {
			return provision.Change{}, err
		}
		diffs = append(diffs, d)
	}
	for _, name := range []string{allSwaps, zramSwaps} {
		if on := swapsOf(name, swaps); len(on) > 0 {
			diffs = append(diffs, provision.Diff{
				Object: provision.Object{Kind: kindSwap, Name: name}, Action: provision.Delete, Reason: "is in use",
				Fields: []provision.Field{{Name: "on", From: strings.Join(on, " ")}},
			})
		}
	}
	return change(diffs...), nil
}

// Apply turns swap off or on.
func (s Swap) Apply(ctx context.Context, host provision.Host) error {
	swaps, err := s.swaps(host)
	if err != nil {
		return err
	}
	if s.On {
		if !host.Live() || slices.Contains(swaps, s.File) {
			return nil
		}
		return s.makeFile(ctx, host)
	}
	wanted, err := s.files(host)
	if err != nil {
		return err
	}
	for _, file := range wanted {
		if d, err := file.check(host); err != nil || d.Action == "" {
			if err != nil {
				return err
			}
			continue
		}
		if err := file.write(host); err != nil {
			return err
		}
	}
	for _, path := range swaps {
		if err := host.Kernel().SwapOff(ctx, path); err != nil {
			return err
		}
	}
	return nil
}

// makeFile creates the swap file again: a file that is not in use may be incomplete.
func (s Swap) makeFile(ctx context.Context, host provision.Host) error {
	if err := makeParents(host, s.File); err != nil {
		return err
	}
	if err := host.Files().Write(s.File, strings.NewReader(""), provision.Attr{Mode: 0o600}); err != nil {
		return err
	}
	for _, args := range [][]string{
		{"dd", "if=/dev/zero", "of=" + s.File, "bs=1M", "count=" + strconv.FormatInt((s.Size+1<<20-1)>>20, 10), "conv=notrunc,fsync", "status=none"},
		{"mkswap", s.File},
	} {
		if _, err := host.Run(ctx, provision.Command{Args: args}); err != nil {
			return fmt.Errorf("cannot make swap file %s: %w", s.File, err)
		}
	}
	return host.Kernel().SwapOn(ctx, s.File)
}

// swapKind is a file that may be in use as swap, or active swap of one sort: allSwaps or zramSwaps.
type swapKind struct{}

// Read reports whether a file is there and in use, or what is in use.
func (swapKind) Read(_ context.Context, host provision.Host, name string) (provision.State, error) {
	if !host.Live() {
		return provision.State{}, nil
	}
	swaps, err := host.Kernel().Swaps()
	if err != nil {
		return provision.State{}, err
	}
	if name == allSwaps || name == zramSwaps {
		return provision.State{Exists: true, Attrs: map[string]string{"on": strings.Join(swapsOf(name, swaps), " ")}}, nil
	}
	if _, err := host.Files().Stat(name); err != nil {
		return provision.State{}, errs.IgnoreNotFound(err)
	}
	on := ""
	if slices.Contains(swaps, name) {
		on = name
	}
	return provision.State{Exists: true, Attrs: map[string]string{"on": on}}, nil
}

// Restore turns swap on and off as before, and removes a file that did not exist.
func (k swapKind) Restore(ctx context.Context, host provision.Host, name string, state provision.State, _ provision.Content) error {
	now, err := k.Read(ctx, host, name)
	if err != nil || !host.Live() {
		return err
	}
	is, was := strings.Fields(now.Attrs["on"]), strings.Fields(state.Attrs["on"])
	for _, on := range is {
		if !slices.Contains(was, on) {
			if err := host.Kernel().SwapOff(ctx, on); err != nil {
				return err
			}
		}
	}
	for _, off := range was {
		if !slices.Contains(is, off) {
			if err := swapOn(ctx, host, off); err != nil {
				return err
			}
		}
	}
	if !state.Exists && path.IsAbs(name) {
		return host.Files().Remove(name)
	}
	return nil
}

// swapOn turns swap on again. That of compressed memory has gone with a reboot: its unit makes it again, once its
// configuration is restored.
func swapOn(ctx context.Context, host provision.Host, path string) error {
	err := host.Kernel().SwapOn(ctx, path)
	device, isZram := strings.CutPrefix(path, zramPath)
	if err == nil || !isZram {
		return err
	}
	if err := host.Units().Reload(ctx); err != nil {
		return err
	}
	if err := host.Units().Start(ctx, "dev-zram"+device+".swap"); err != nil {
		return fmt.Errorf("swap %s, in memory, may come back at the next boot: %w: %w", path, errs.State, err)
	}
	return nil
}
