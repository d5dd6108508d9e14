package leaks

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"github.com/google/nftables"

	"github.com/berthrun/berth/internal/errs"
	"github.com/berthrun/berth/internal/network/builtin"
)

// links lists the host's ends of pods' links. Their aliases name the sandboxes.
func links(_ context.Context, f *Facts) ([]object, error) {
	found, err := f.Host.Links(f.Bridge)
	if err != nil {
		return nil, err
	}
	var all []object
	for _, l := range found {
		sandbox, ours := builtin.SandboxOfLink(l.Alias)
		if !ours {
			continue
		}
		all = append(all, object{
			owner: sandbox, name: l.Name, key: strconv.Itoa(l.Index) + " " + l.Alias,
			evidence: fmt.Sprintf("the link %s on %s is of sandbox %s, which has no record", l.Name, f.Bridge, sandbox),
			fix:      "ip link delete " + l.Name,
			does:     "deletes the link " + l.Name,
			remove:   func(context.Context) error { return f.Host.RemoveLink(l) },
		})
	}
	return all, nil
}

// elements lists the entries of berth's tables.
func elements(_ context.Context, f *Facts) ([]object, error) {
	found, err := f.Host.Elements(f.Table)
	if err != nil {
		return nil, err
	}
	var all []object
	for _, e := range found {
		pod, link := builtin.OwnerOfElement(e.Set, e.Key, e.Val)
		owner, what := link, "frames of the link "+link
		if pod.IsValid() {
			owner, what = pod.String(), "a host port of the pod with address "+pod.String()
		}
		if owner == "" {
			continue
		}
		family := "inet"
		if e.Family == nftables.TableFamilyBridge {
			family = "bridge"
		}
		set := fmt.Sprintf("%s %s %s", family, e.Table, e.Set)
		all = append(all, object{
			owner: owner, name: fmt.Sprintf("%s %x", set, e.Key), key: fmt.Sprintf("%x", e.Val),
			evidence: fmt.Sprintf("nftables has an entry in %s for %s, which has no record", set, what),
			fix:      "start berth, which makes its tables again from its records; or nft delete table " + family + " " + e.Table + ", while berth has no pods",
			does:     "deletes the entry from " + set,
			remove:   func(context.Context) error { return f.Host.RemoveElement(e) },
		})
	}
	return all, nil
}

// whileBuiltinRuns refuses to change the tables of a berth that runs. It compares them with its records
// itself, and a new pod may have the address of one that is gone.
func whileBuiltinRuns(ctx context.Context, f *Facts) error {
	answer, err := f.ask(ctx)
	if errors.Is(err, errs.Unavailable) {
		return nil
	}
	if err != nil {
		return err
	}
	if answer.Builtin || answer.State == "" && f.Builtin {
		return fmt.Errorf("berth runs, and makes its tables again itself when they differ from its records; restart it if the entry stays: %w", errs.State)
	}
	return nil
}
