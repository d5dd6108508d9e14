package tasks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// Mount is a mount now; to have it at boot too, add a unit (Unit with a ".mount" name).
type Mount struct {
	M provision.Meta
	provision.Mount
}

// ID is "mount PATH".
func (m Mount) ID() string { return "mount " + m.Path }

// Meta returns M.
func (m Mount) Meta() provision.Meta { return m.M }

// Objects is the mount.
func (m Mount) Objects(context.Context, provision.Host) ([]provision.Object, error) {
	return []provision.Object{{Kind: kindMount, Name: m.Path}}, checkPath(m.Path)
}

// Check looks for a mount at the path.
func (m Mount) Check(_ context.Context, host provision.Host) (provision.Change, error) {
	if !host.Live() {
		return provision.Change{}, nil
	}
	now, found, err := mountAt(host, m.Path)
	if err != nil {
		return provision.Change{}, err
	}
	if found && now.Type != m.Type && m.Type != "" && !slices.Contains(m.Options, "bind") {
		return provision.Change{}, fmt.Errorf("%s is a mount of %s (%s), which is not ours: %w", m.Path, now.Source, now.Type, errs.State)
	}
	if found {
		return provision.Change{}, nil
	}
	return change(provision.Diff{
		Object: provision.Object{Kind: kindMount, Name: m.Path}, Action: provision.Create, Reason: "is not mounted",
		Fields: []provision.Field{{Name: "source", To: m.Source}, {Name: "type", To: m.Type}, {Name: "options", To: strings.Join(m.Options, ",")}},
	}), nil
}

// Apply mounts it, on a directory that is made where there is none.
func (m Mount) Apply(ctx context.Context, host provision.Host) error {
	if !host.Live() {
		return nil
	}
	if _, found, err := mountAt(host, m.Path); found || err != nil {
		return err
	}
	if err := makeParents(host, m.Path+"/."); err != nil {
		return err
	}
	return host.Kernel().Mount(ctx, m.Mount)
}

func mountAt(host provision.Host, path string) (provision.Mount, bool, error) {
	list, err := host.Kernel().Mounts()
	if err != nil {
		return provision.Mount{}, false, err
	}
	for _, m := range slices.Backward(list) {
		if m.Path == path {
			return m, true, nil
		}
	}
	return provision.Mount{}, false, nil
}

// mountKind is a mount point.
type mountKind struct{}

// Path is a place in the mount point, so that the point itself is a parent.
func (mountKind) Path(name string) string { return name + "/." }

// Read tells source, type and options.
func (mountKind) Read(_ context.Context, host provision.Host, name string) (provision.State, error) {
	if !host.Live() {
		return provision.State{}, nil
	}
	m, found, err := mountAt(host, name)
	if err != nil || !found {
		return provision.State{}, err
	}
	return provision.State{Exists: true, Attrs: map[string]string{
		"source": m.Source, "type": m.Type, "options": strings.Join(m.Options, ","),
	}}, nil
}

// Restore unmounts what was not mounted, and mounts what was.
func (k mountKind) Restore(ctx context.Context, host provision.Host, name string, state provision.State, _ provision.Content) error {
	now, err := k.Read(ctx, host, name)
	switch {
	case err != nil || now.Exists == state.Exists || !host.Live():
		return err
	case !state.Exists:
		return host.Kernel().Unmount(ctx, name)
	}
	return host.Kernel().Mount(ctx, provision.Mount{
		Path: name, Source: state.Attrs["source"], Type: state.Attrs["type"],
		Options: strings.Split(state.Attrs["options"], ","),
	})
}

// Swap says whether the machine swaps: off turns off what is on and comments its lines
// in /etc/fstab out.
type Swap struct {
	M provision.Meta
	// On true wants File in use; false wants no swap at all.
	On bool
	// File is a swap file of Size bytes that is made where there is none.
	File string
	Size int64
}

// ID is "swap".
func (s Swap) ID() string { return "swap" }

// Meta returns M.
func (s Swap) Meta() provision.Meta { return s.M }

const (
	fstab = "/etc/fstab"
	// allSwaps is the object that stands for all swap of the machine.
	allSwaps = "all"
)

// Objects are /etc/fstab and all swap, or the swap file.
func (s Swap) Objects(_ context.Context, host provision.Host) ([]provision.Object, error) {
	if s.On {
		if s.Size <= 0 {
			return nil, fmt.Errorf("size %d of swap file %s: %w", s.Size, s.File, errs.Invalid)
		}
		return []provision.Object{{Kind: kindSwap, Name: s.File}}, checkPath(s.File)
	}
	var list []provision.Object
	_, wanted, err := s.fstab(host)
	if err != nil {
		return nil, err
	}
	if wanted.path != "" {
		list = append(list, provision.Object{Kind: kindFile, Name: fstab})
	}
	return append(list, provision.Object{Kind: kindSwap, Name: allSwaps}), nil
}

func (s Swap) swaps(host provision.Host) ([]string, error) {
	if !host.Live() {
		return nil, nil
	}
	return host.Kernel().Swaps()
}

// fstab returns /etc/fstab and what it should be; the wish is empty where there is no file.
func (s Swap) fstab(host provision.Host) (string, wishFile, error) {
	r, err := host.Files().Open(fstab)
	if errors.Is(err, errs.NotFound) {
		return "", wishFile{}, nil
	}
	if err != nil {
		return "", wishFile{}, err
	}
	defer r.Close()
	data, err := io.ReadAll(r)
	if err != nil {
		return "", wishFile{}, fmt.Errorf("cannot read %s: %w", fstab, err)
	}
	info, err := host.Files().Stat(fstab)
	if err != nil {
		return "", wishFile{}, err
	}
	lines := strings.SplitAfter(string(data), "\n")
	for i, line := range lines {
		if words := strings.Fields(line); len(words) >= 3 && !strings.HasPrefix(words[0], "#") && words[2] == "swap" {
			lines[i] = "# off by berth node: " + line
		}
	}
	return string(data), wishFile{
		path: fstab, content: strings.Join(lines, ""), mode: info.Mode,
		owner: strconv.Itoa(info.UID), group: strconv.Itoa(info.GID),
	}, nil
}

// Check looks at what swaps now and at boot.
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
	old, want, err := s.fstab(host)
	if err != nil {
		return provision.Change{}, err
	}
	if want.content != old {
		d, err := want.check(host)
		if err != nil {
			return provision.Change{}, err
		}
		diffs = append(diffs, d)
	}
	if len(swaps) > 0 {
		diffs = append(diffs, provision.Diff{
			Object: provision.Object{Kind: kindSwap, Name: allSwaps}, Action: provision.Delete, Reason: "is in use",
			Fields: []provision.Field{{Name: "on", From: strings.Join(swaps, " ")}},
		})
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
	old, want, err := s.fstab(host)
	if err != nil {
		return err
	}
	if want.content != old {
		if err := want.write(host); err != nil {
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

// makeFile makes the swap file anew: one that is not in use may be half made.
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

// swapKind is a file that may be in use as swap, or all that is.
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
	if name == allSwaps {
		return provision.State{Exists: true, Attrs: map[string]string{"on": strings.Join(swaps, " ")}}, nil
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

// Restore turns on and off what was; a file that was not there goes.
func (k swapKind) Restore(ctx context.Context, host provision.Host, name string, state provision.State, _ provision.Content) error {
	now, err := k.Read(ctx, host, name)
	if err != nil || !host.Live() {
		return err
	}
	is, was := strings.Fields(now.Attrs["on"]), strings.Fields(state.Attrs["on"])
	for _, path := range is {
		if !slices.Contains(was, path) {
			if err := host.Kernel().SwapOff(ctx, path); err != nil {
				return err
			}
		}
	}
	for _, path := range was {
		if !slices.Contains(is, path) {
			if err := host.Kernel().SwapOn(ctx, path); err != nil {
				return err
			}
		}
	}
	if !state.Exists && name != allSwaps {
		return host.Files().Remove(name)
	}
	return nil
}
