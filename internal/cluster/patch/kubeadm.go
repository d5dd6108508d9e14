package patch

import (
	"fmt"
	"slices"
	"sort"
	"strings"

	"github.com/berthrun/berth/internal/errs"
)

// mergeKubeadm merges as RFC 7386 says, except for kubeadm's lists that are sets: certSANs are
// added, and arguments of components and labels of nodes are set one by one (a null value removes
// one). An argument may be written as either form of kubeadm's API, the mapping of v1beta3 or the
// list of v1beta4, in a patch that names no version.
func mergeKubeadm(doc, patch Doc) (Doc, error) {
	version, _ := doc["apiVersion"].(string)
	asList := strings.HasSuffix(version, "/v1beta4")
	merged, err := mergeSets(doc, patch, asList, patch["apiVersion"] != nil)
	return merged, err
}

// mergeSets walks both. strict: the patch is written for this version and must have its form.
func mergeSets(into, patch map[string]any, asList, strict bool) (map[string]any, error) {
	rest := make(map[string]any, len(patch))
	sets := map[string]any{}
	for key, value := range patch {
		nested, isMap := value.(map[string]any)
		var err error
		switch {
		case value == nil:
			rest[key] = nil
		case key == "extraArgs" || key == "kubeletExtraArgs":
			sets[key], err = mergeArgs(into[key], value, asList, strict)
		case key == "certSANs":
			sets[key] = union(into[key], value)
		case isMap:
			old, _ := into[key].(map[string]any)
			sets[key], err = mergeSets(old, nested, asList, strict)
		default:
			rest[key] = value
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", key, err)
		}
	}
	merged := merge(into, rest)
	for key, value := range sets {
		merged[key] = value
	}
	return merged, nil
}

func union(old, added any) any {
	list, _ := old.([]any)
	more, ok := added.([]any)
	if !ok {
		return added // kubeadm reports the fault
	}
	all := slices.Clone(list)
	for _, item := range more {
		if !slices.Contains(all, item) {
			all = append(all, item)
		}
	}
	return all
}

// argument is one command-line option of a component; a nil value removes it.
type argument struct {
	name  string
	value any
}

func mergeArgs(old, added any, asList, strict bool) (any, error) {
	if _, isList := added.([]any); strict && isList != asList {
		if asList {
			return nil, fmt.Errorf("a mapping: kubeadm's v1beta4 has a list of name and value: %w", errs.Invalid)
		}
		return nil, fmt.Errorf("a list: kubeadm has a mapping before v1beta4: %w", errs.Invalid)
	}
	args, err := arguments(old)
	if err != nil {
		return nil, err
	}
	more, err := arguments(added)
	if err != nil {
		return nil, err
	}
	for _, arg := range more {
		i := slices.IndexFunc(args, func(a argument) bool { return a.name == arg.name })
		switch {
		case i >= 0 && arg.value == nil:
			args = slices.Delete(args, i, i+1)
		case i >= 0 && arg.name == "node-labels":
			args[i].value = withLabels(args[i].value, arg.value)
		case i >= 0:
			args[i].value = arg.value
		case arg.value != nil:
			args = append(args, arg)
		}
	}
	if asList {
		list := make([]any, len(args))
		for i, arg := range args {
			list[i] = map[string]any{"name": arg.name, "value": arg.value}
		}
		return list, nil
	}
	entries := make(map[string]any, len(args))
	for _, arg := range args {
		entries[arg.name] = arg.value
	}
	return entries, nil
}

// withLabels adds labels to those of the cluster file. In kind, a patch for one more label removes
// the others.
func withLabels(old, added any) any {
	had, isText := old.(string)
	more, alsoText := added.(string)
	if !isText || !alsoText || more == "" {
		return added // kubeadm reports the fault, or all are removed
	}
	labels := strings.Split(more, ",")
	var kept []string
	for _, label := range strings.Split(had, ",") {
		key, _, _ := strings.Cut(label, "=")
		isSame := func(l string) bool { name, _, _ := strings.Cut(l, "="); return name == key }
		if label != "" && !slices.ContainsFunc(labels, isSame) {
			kept = append(kept, label)
		}
	}
	return strings.Join(append(kept, labels...), ",")
}

// arguments reads either form; those of a mapping come sorted.
func arguments(value any) ([]argument, error) {
	var args []argument
	switch value := value.(type) {
	case nil:
	case map[string]any:
		for name, v := range value {
			args = append(args, argument{name, v})
		}
		sort.Slice(args, func(i, j int) bool { return args[i].name < args[j].name })
	case []any:
		for _, item := range value {
			entry, _ := item.(map[string]any)
			name, ok := entry["name"].(string)
			if !ok {
				return nil, fmt.Errorf("an argument without a name: %w", errs.Invalid)
			}
			args = append(args, argument{name, entry["value"]})
		}
	default:
		return nil, fmt.Errorf("%T: want arguments: %w", value, errs.Invalid)
	}
	return args, nil
}
