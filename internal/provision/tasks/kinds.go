package tasks

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// The kinds of objects. Their names are part of the journal's format.
const (
	kindFile     = provision.KindFile
	kindDir      = provision.KindDir
	kindJSONFile = provision.KindJSONFile
	kindJSONKey  = provision.KindJSONKey
	kindPackage  = provision.KindPackage
	kindUnit     = provision.KindUnit
	kindSysctl   = "sysctl"
	kindModule   = "module"
	kindUser     = "user"
	kindGroup    = "group"
	kindCommand  = "command"
	kindSwap     = "swap"
	kindData     = provision.KindData
)

// Kinds returns the kinds of all objects of this package's tasks.
func Kinds() map[string]provision.Kind {
	return map[string]provision.Kind{
		kindFile:     fileKind{},
		kindDir:      dirKind{},
		kindJSONFile: jsonFileKind{},
		kindJSONKey:  jsonKeyKind{},
		kindPackage:  packageKind{},
		kindUnit:     unitKind{},
		kindSysctl:   sysctlKind{},
		kindModule:   moduleKind{},
		kindUser:     userKind{},
		kindGroup:    groupKind{},
		kindCommand:  commandKind{},
		kindSwap:     swapKind{},
		kindData:     dataKind{},
	}
}

// fileKind is a regular file or a link.
type fileKind struct{}

// Path is the name.
func (fileKind) Path(name string) string { return name }

// Content opens the file.
func (fileKind) Content(host provision.Host, name string) (io.ReadCloser, error) {
	return host.Files().Open(name)
}

// Read returns type, mode, owner and digest.
func (fileKind) Read(_ context.Context, host provision.Host, name string) (provision.State, error) {
	return readPath(host, name)
}

func readPath(host provision.Host, name string) (provision.State, error) {
	info, err := host.Files().Stat(name)
	if errors.Is(err, errs.NotFound) {
		return provision.State{}, nil
	}
	if err != nil {
		return provision.State{}, err
	}
	state := provision.State{Exists: true, Attrs: pathAttrs(info)}
	if info.Type == 0 {
		state.Digest, err = host.Files().Digest(name)
		if errors.Is(err, errs.NotFound) { // gone since
			return provision.State{}, nil
		}
	}
	return state, err
}

// Restore writes the earlier file, link or directory, or removes the present one.
func (fileKind) Restore(ctx context.Context, host provision.Host, name string, state provision.State, content provision.Content) error {
	now, err := readPath(host, name)
	if err != nil {
		return err
	}
	if now.Digest == state.Digest && now.Exists == state.Exists && maps.Equal(now.Attrs, state.Attrs) {
		return nil
	}
	if !state.Exists {
		return host.Files().Remove(name)
	}
	switch state.Attrs[attrType] {
	case "link":
		if err := makeParents(host, name); err != nil {
			return err
		}
		attr, err := linkAttr(state)
		if err != nil {
			return err
		}
		return host.Files().Link(state.Attrs[attrTarget], name, attr)
	case "dir":
		return dirKind{}.Restore(ctx, host, name, state, content)
	case "file":
		return restoreFile(host, name, now, state, content)
	}
	return fmt.Errorf("%s was a %s before, which cannot be made again: %w", name, state.Attrs[attrType], errs.State)
}

func restoreFile(host provision.Host, name string, now, state provision.State, content provision.Content) error {
	attr, err := stateAttr(state)
	if err != nil {
		return err
	}
	if now.Attrs[attrType] == "file" && now.Digest == state.Digest {
		return host.Files().SetAttr(name, attr)
	}
	if err := makeParents(host, name); err != nil {
		return err
	}
	r, err := content()
	if err != nil {
		return err
	}
	defer r.Close()
	return host.Files().Write(name, r, attr)
}

func linkAttr(state provision.State) (provision.Attr, error) {
	withMode := provision.State{Attrs: maps.Clone(state.Attrs)}
	withMode.Attrs[attrMode] = "0777"
	return stateAttr(withMode)
}

// dirKind is a directory, without its content.
type dirKind struct{}

// Path is the name.
func (dirKind) Path(name string) string { return name }

// Read returns type, mode and owner.
func (dirKind) Read(_ context.Context, host provision.Host, name string) (provision.State, error) {
	info, err := host.Files().Stat(name)
	if errors.Is(err, errs.NotFound) {
		return provision.State{}, nil
	}
	if err != nil {
		return provision.State{}, err
	}
	return provision.State{Exists: true, Attrs: pathAttrs(info)}, nil
}

// Restore creates it again, or removes it if it is empty: its content is not ours.
func (d dirKind) Restore(ctx context.Context, host provision.Host, name string, state provision.State, _ provision.Content) error {
	now, err := d.Read(ctx, host, name)
	if err != nil || maps.Equal(now.Attrs, state.Attrs) {
		return err
	}
	if !state.Exists {
		entries, err := host.Files().ReadDir(name)
		if err != nil {
			return errs.IgnoreNotFound(err)
		}
		if len(entries) > 0 {
			return fmt.Errorf("%s holds %d entries that are not ours (%s, …) and stays: %w", name, len(entries), entries[0], errs.State)
		}
		bound, _, err := dataMounts(host, name)
		if err != nil {
			return err
		}
		for range bound { // as programs that pin network namespaces do
			if err := host.Kernel().Unmount(ctx, name); err != nil {
				return err
			}
		}
		return host.Files().Remove(name)
	}
	if state.Attrs[attrType] != "dir" {
		return fmt.Errorf("%s was a %s before, which cannot be made again: %w", name, state.Attrs[attrType], errs.State)
	}
	attr, err := stateAttr(state)
	if err != nil {
		return err
	}
	if !now.Exists {
		if err := makeParents(host, name); err != nil {
			return err
		}
		if err := host.Files().Mkdir(name, attr); err != nil {
			return err
		}
	}
	return host.Files().SetAttr(name, attr)
}
