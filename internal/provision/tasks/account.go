package tasks

import (
	"context"
	"errors"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// User is an account. Fields as provision.User has them; -1 for ids that the system chooses. Apply
// adds groups, and removes none.
type User struct {
	M provision.Meta
	provision.User
}

// ID is "user NAME".
func (u User) ID() string { return "user " + u.Name }

// Meta returns M.
func (u User) Meta() provision.Meta { return u.M }

// Group is a group.
type Group struct {
	M provision.Meta
	provision.Group
}

// ID is "group NAME".
func (g Group) ID() string { return "group " + g.Name }

// Meta returns M.
func (g Group) Meta() provision.Meta { return g.M }

// checkAccount allows names that all user databases accept.
func checkAccount(name string) error {
	if !regexp.MustCompile(`^[a-z_][a-z0-9_-]{0,30}\$?$`).MatchString(name) {
		return fmt.Errorf("account name %q: %w", name, errs.Invalid)
	}
	return nil
}

// Objects is the account.
func (u User) Objects(context.Context, provision.Host) ([]provision.Object, error) {
	return []provision.Object{{Kind: kindUser, Name: u.Name}}, checkAccount(u.Name)
}

// Check compares what is set.
func (u User) Check(_ context.Context, host provision.Host) (provision.Change, error) {
	d := provision.Diff{Object: provision.Object{Kind: kindUser, Name: u.Name}}
	now, err := host.Accounts().User(u.Name)
	if errors.Is(err, errs.NotFound) {
		d.Action, d.Reason = provision.Create, "is not there"
		return change(d), nil
	}
	if err != nil {
		return provision.Change{}, err
	}
	d.Fields = fields(userAttrs(now), userAttrs(u.merged(now)), "uid", "gid", "home", "shell", "groups")
	if len(d.Fields) > 0 {
		d.Action, d.Reason = provision.Modify, "differs"
	}
	return change(d), nil
}

// merged is the account as it is with all that the task sets.
func (u User) merged(now provision.User) provision.User {
	if u.UID >= 0 {
		now.UID = u.UID
	}
	if u.GID >= 0 {
		now.GID = u.GID
	}
	if u.Home != "" {
		now.Home = u.Home
	}
	if u.Shell != "" {
		now.Shell = u.Shell
	}
	groups := slices.Concat(now.Groups, u.Groups)
	slices.Sort(groups)
	now.Groups = slices.Compact(groups)
	return now
}

// Apply creates or changes the account.
func (u User) Apply(ctx context.Context, host provision.Host) error {
	now, err := host.Accounts().User(u.Name)
	if errors.Is(err, errs.NotFound) {
		return host.Accounts().SetUser(ctx, u.User)
	}
	if err != nil {
		return err
	}
	return host.Accounts().SetUser(ctx, u.merged(now))
}

func userAttrs(u provision.User) map[string]string {
	return map[string]string{
		"uid": strconv.Itoa(u.UID), "gid": strconv.Itoa(u.GID), "home": u.Home, "shell": u.Shell,
		"groups": strings.Join(u.Groups, ","),
	}
}

// Objects is the group.
func (g Group) Objects(context.Context, provision.Host) ([]provision.Object, error) {
	return []provision.Object{{Kind: kindGroup, Name: g.Name}}, checkAccount(g.Name)
}

// Check compares the id where one is wanted.
func (g Group) Check(_ context.Context, host provision.Host) (provision.Change, error) {
	d := provision.Diff{Object: provision.Object{Kind: kindGroup, Name: g.Name}}
	now, err := host.Accounts().Group(g.Name)
	switch {
	case errors.Is(err, errs.NotFound):
		d.Action, d.Reason = provision.Create, "is not there"
	case err != nil:
		return provision.Change{}, err
	case g.GID >= 0 && g.GID != now.GID:
		d.Action, d.Reason = provision.Modify, "differs"
		d.Fields = []provision.Field{{Name: "gid", From: strconv.Itoa(now.GID), To: strconv.Itoa(g.GID)}}
	}
	return change(d), nil
}

// Apply creates or changes the group.
func (g Group) Apply(ctx context.Context, host provision.Host) error {
	return host.Accounts().SetGroup(ctx, g.Group)
}

// userKind is an account.
type userKind struct{}

// Read returns its ids, home, shell and groups.
func (userKind) Read(_ context.Context, host provision.Host, name string) (provision.State, error) {
	u, err := host.Accounts().User(name)
	if err != nil {
		return provision.State{}, errs.IgnoreNotFound(err)
	}
	return provision.State{Exists: true, Attrs: userAttrs(u)}, nil
}

// Restore removes the account or sets it back.
func (userKind) Restore(ctx context.Context, host provision.Host, name string, state provision.State, _ provision.Content) error {
	if !state.Exists {
		return host.Accounts().RemoveUser(ctx, name)
	}
	uid, err := strconv.Atoi(state.Attrs["uid"])
	if err != nil {
		return fmt.Errorf("uid %q: %w", state.Attrs["uid"], errs.Invalid)
	}
	gid, err := strconv.Atoi(state.Attrs["gid"])
	if err != nil {
		return fmt.Errorf("gid %q: %w", state.Attrs["gid"], errs.Invalid)
	}
	u := provision.User{Name: name, UID: uid, GID: gid, Home: state.Attrs["home"], Shell: state.Attrs["shell"]}
	if state.Attrs["groups"] != "" {
		u.Groups = strings.Split(state.Attrs["groups"], ",")
	}
	return host.Accounts().SetUser(ctx, u)
}

// groupKind is a group.
type groupKind struct{}

// Read returns its id.
func (groupKind) Read(_ context.Context, host provision.Host, name string) (provision.State, error) {
	g, err := host.Accounts().Group(name)
	if err != nil {
		return provision.State{}, errs.IgnoreNotFound(err)
	}
	return provision.State{Exists: true, Attrs: map[string]string{"gid": strconv.Itoa(g.GID)}}, nil
}

// Restore removes the group or sets its id back.
func (groupKind) Restore(ctx context.Context, host provision.Host, name string, state provision.State, _ provision.Content) error {
	if !state.Exists {
		return host.Accounts().RemoveGroup(ctx, name)
	}
	gid, err := strconv.Atoi(state.Attrs["gid"])
	if err != nil {
		return fmt.Errorf("gid %q: %w", state.Attrs["gid"], errs.Invalid)
	}
	return host.Accounts().SetGroup(ctx, provision.Group{Name: name, GID: gid})
}
