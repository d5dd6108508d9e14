package machine

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/provision"
)

// accounts is the machine's own user database, without network directories.
type accounts struct{ machine *Machine }

// lines reads a database, each line split at colons.
func (a accounts) lines(path string) ([][]string, error) {
	r, err := a.machine.files.Open(path)
	if err != nil {
		return nil, errs.IgnoreNotFound(err)
	}
	defer r.Close()
	var list [][]string
	scan := bufio.NewScanner(r)
	for scan.Scan() {
		if scan.Text() != "" {
			list = append(list, strings.Split(scan.Text(), ":"))
		}
	}
	return list, scan.Err()
}

// User reads /etc/passwd and /etc/group.
func (a accounts) User(name string) (provision.User, error) {
	users, err := a.lines("/etc/passwd")
	if err != nil {
		return provision.User{}, err
	}
	for _, f := range users {
		if f[0] != name || len(f) < 7 {
			continue
		}
		uid, uidErr := strconv.Atoi(f[2])
		gid, gidErr := strconv.Atoi(f[3])
		if err := errors.Join(uidErr, gidErr); err != nil {
			return provision.User{}, fmt.Errorf("user %s in /etc/passwd: %w: %w", name, errs.State, err)
		}
		groups, err := a.groupsOf(name)
		return provision.User{Name: name, UID: uid, GID: gid, Home: f[5], Shell: f[6], Groups: groups}, err
	}
	return provision.User{}, fmt.Errorf("user %s: %w", name, errs.NotFound)
}

func (a accounts) groupsOf(user string) ([]string, error) {
	groups, err := a.lines("/etc/group")
	var list []string
	for _, f := range groups {
		if len(f) >= 4 && slices.Contains(strings.Split(f[3], ","), user) {
			list = append(list, f[0])
		}
	}
	slices.Sort(list)
	return list, err
}

// Group reads /etc/group.
func (a accounts) Group(name string) (provision.Group, error) {
	groups, err := a.lines("/etc/group")
	if err != nil {
		return provision.Group{}, err
	}
	for _, f := range groups {
		if f[0] == name && len(f) >= 3 {
			gid, err := strconv.Atoi(f[2])
			return provision.Group{Name: name, GID: gid}, err
		}
	}
	return provision.Group{}, fmt.Errorf("group %s: %w", name, errs.NotFound)
}

// run runs a program of the shadow suite, in the machine's root.
func (a accounts) run(ctx context.Context, args ...string) error {
	if !a.machine.Live() {
		args = slices.Insert(args, 1, "--root", a.machine.root)
	}
	_, err := run(ctx, provision.Command{Args: args})
	return err
}

// SetUser is useradd or usermod.
func (a accounts) SetUser(ctx context.Context, u provision.User) error {
	now, err := a.User(u.Name)
	add := errors.Is(err, errs.NotFound)
	if err != nil && !add {
		return err
	}
	var args []string
	option := func(flag, value, now string) {
		if value != "" && (add || value != now) {
			args = append(args, flag, value)
		}
	}
	id := func(n int) string {
		if n < 0 {
			return ""
		}
		return strconv.Itoa(n)
	}
	option("--uid", id(u.UID), id(now.UID))
	option("--gid", id(u.GID), id(now.GID))
	option("--shell", u.Shell, now.Shell)
	home := "--home"
	if add {
		home = "--home-dir"
	}
	option(home, u.Home, now.Home)
	if groups := strings.Join(u.Groups, ","); groups != strings.Join(now.Groups, ",") {
		args = append(args, "--groups", groups)
	}
	switch {
	case add && u.System:
		args = slices.Insert(args, 0, "useradd", "--system", "--no-create-home")
	case add:
		args = slices.Insert(args, 0, "useradd", "--no-create-home")
	case len(args) == 0:
		return nil
	default:
		args = slices.Insert(args, 0, "usermod")
	}
	if add && u.GID < 0 {
		if _, err := a.Group(u.Name); err == nil {
			args = append(args, "--gid", u.Name) // the group of its name, instead of a new one
		}
	}
	if err := a.run(ctx, append(args, u.Name)...); err != nil {
		return fmt.Errorf("cannot set user %s: %w", u.Name, err)
	}
	return nil
}

// SetGroup is groupadd or groupmod.
func (a accounts) SetGroup(ctx context.Context, g provision.Group) error {
	now, err := a.Group(g.Name)
	add := errors.Is(err, errs.NotFound)
	if err != nil && !add {
		return err
	}
	args := []string{"groupadd"}
	switch {
	case !add && (g.GID < 0 || g.GID == now.GID):
		return nil
	case !add:
		args = []string{"groupmod"}
	case g.System:
		args = append(args, "--system")
	}
	if g.GID >= 0 {
		args = append(args, "--gid", strconv.Itoa(g.GID))
	}
	if err := a.run(ctx, append(args, g.Name)...); err != nil {
		return fmt.Errorf("cannot set group %s: %w", g.Name, err)
	}
	return nil
}

// RemoveUser is userdel. Its home and files stay.
func (a accounts) RemoveUser(ctx context.Context, name string) error {
	if _, err := a.User(name); err != nil {
		return errs.IgnoreNotFound(err)
	}
	if err := a.run(ctx, "userdel", name); err != nil {
		return fmt.Errorf("cannot remove user %s: %w", name, err)
	}
	return nil
}

// RemoveGroup is groupdel.
func (a accounts) RemoveGroup(ctx context.Context, name string) error {
	if _, err := a.Group(name); err != nil {
		return errs.IgnoreNotFound(err)
	}
	if err := a.run(ctx, "groupdel", name); err != nil {
		return fmt.Errorf("cannot remove group %s: %w", name, err)
	}
	return nil
}
