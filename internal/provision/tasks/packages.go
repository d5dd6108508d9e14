package tasks

import (
	"context"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// Packages are packages of the distribution, installed in one transaction.
type Packages struct {
	M provision.Meta
	// Install lists what is wanted; names are those of the distribution.
	Install []provision.PackageVersion
	// Hold lists units that the packages bring and must not start: another task does, when
	// their configuration is in place.
	Hold []string
}

// ID is "packages NAME NAME …".
func (p Packages) ID() string { return "packages " + strings.Join(p.names(), " ") }

// Meta returns M.
func (p Packages) Meta() provision.Meta { return p.M }

// Deadline allows for a slow mirror.
func (Packages) Deadline() time.Duration { return 30 * time.Minute }

// Prepare fetches the lists if they lack a package, so that its dependencies are known before
// anything changes, and can be removed with it.
func (p Packages) Prepare(ctx context.Context, host provision.Host) error {
	missing, err := p.missing(ctx, host)
	if err != nil || len(missing) == 0 {
		return err
	}
	if _, err := host.Packages().Plan(ctx, missing); !errors.Is(err, errs.Unavailable) {
		return nil // Install reports other errors
	}
	return host.Packages().Refresh(ctx)
}

// Objects lists the packages, and before they are installed those that come along.
func (p Packages) Objects(ctx context.Context, host provision.Host) ([]provision.Object, error) {
	missing, err := p.missing(ctx, host)
	if err != nil {
		return nil, err
	}
	var names []string
	if len(missing) > 0 {
		// Install reports what cannot be planned now (lists that are not fetched yet).
		along, err := host.Packages().Plan(ctx, missing)
		if err != nil && !errors.Is(err, errs.Unavailable) && !errors.Is(err, errs.NotFound) {
			return nil, err
		}
		for _, pkg := range along {
			names = append(names, pkg.Name)
		}
	}
	for _, pkg := range p.Install {
		if !slices.Contains(names, pkg.Name) {
			names = append(names, pkg.Name)
		}
	}
	list := make([]provision.Object, len(names))
	for i, name := range names {
		list[i] = provision.Object{Kind: kindPackage, Name: name}
	}
	return list, nil
}

// Check compares versions where one is wanted.
func (p Packages) Check(ctx context.Context, host provision.Host) (provision.Change, error) {
	missing, err := p.missing(ctx, host)
	if err != nil || len(missing) == 0 {
		return provision.Change{}, err
	}
	installed, err := host.Packages().Installed(ctx, p.names())
	if err != nil {
		return provision.Change{}, err
	}
	var diffs []provision.Diff
	for _, pkg := range missing {
		d := provision.Diff{
			Object: provision.Object{Kind: kindPackage, Name: pkg.Name}, Action: provision.Create, Reason: "is not installed",
			Fields: []provision.Field{{Name: "version", From: installed[pkg.Name], To: pkg.Version}},
		}
		if pkg.Version == "" {
			d.Fields[0].To = "any"
		}
		if installed[pkg.Name] != "" {
			d.Action, d.Reason = provision.Modify, "version differs"
		}
		diffs = append(diffs, d)
	}
	return change(diffs...), nil
}

// Apply installs what is missing in one transaction.
func (p Packages) Apply(ctx context.Context, host provision.Host) error {
	missing, err := p.missing(ctx, host)
	if err != nil || len(missing) == 0 {
		return err
	}
	return host.Packages().Install(ctx, missing, p.Hold)
}

func (p Packages) names() []string {
	names := make([]string, len(p.Install))
	for i, pkg := range p.Install {
		names[i] = pkg.Name
	}
	return names
}

func (p Packages) missing(ctx context.Context, host provision.Host) ([]provision.PackageVersion, error) {
	installed, err := host.Packages().Installed(ctx, p.names())
	if err != nil {
		return nil, err
	}
	var list []provision.PackageVersion
	for _, pkg := range p.Install {
		if version, ok := installed[pkg.Name]; !ok || pkg.Version != "" && pkg.Version != version {
			list = append(list, pkg)
		}
	}
	return list, nil
}

// packageKind is an installed package, or one that was left half installed, with no version.
type packageKind struct{}

// Deadline is that of the task.
func (packageKind) Deadline() time.Duration { return Packages{}.Deadline() }

// Read returns the version.
func (packageKind) Read(ctx context.Context, host provision.Host, name string) (provision.State, error) {
	installed, err := host.Packages().Installed(ctx, []string{name})
	if err != nil {
		return provision.State{}, err
	}
	if version, ok := installed[name]; ok {
		return provision.State{Exists: true, Attrs: map[string]string{"version": version}}, nil
	}
	half, err := host.Packages().Half(ctx, []string{name})
	if err != nil || len(half) == 0 {
		return provision.State{}, err
	}
	return provision.State{Exists: true, Attrs: map[string]string{"version": ""}}, nil
}

// Restore removes the package or installs the version that was there.
func (k packageKind) Restore(ctx context.Context, host provision.Host, name string, state provision.State, _ provision.Content) error {
	now, err := k.Read(ctx, host, name)
	switch {
	case err != nil:
		return err
	case now.Exists == state.Exists && now.Attrs["version"] == state.Attrs["version"]:
		return nil
	case !state.Exists:
		return host.Packages().Remove(ctx, []string{name})
	}
	return host.Packages().Revert(ctx, []provision.PackageVersion{{Name: name, Version: state.Attrs["version"]}})
}

// RestoreJointly installs the versions that were there.
func (packageKind) RestoreJointly(ctx context.Context, host provision.Host, states map[string]provision.State) error {
	var list []provision.PackageVersion
	for _, name := range slices.Sorted(maps.Keys(states)) {
		list = append(list, provision.PackageVersion{Name: name, Version: states[name].Attrs["version"]})
	}
	return host.Packages().Revert(ctx, list)
}
