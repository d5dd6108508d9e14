package sigstore

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"slices"
	"testing"

	"github.com/berthrun/berth/internal/image/imagetest/keyless"
	"github.com/berthrun/berth/internal/image/policy"
)

// unread are the fields that the reference reads and berth does not, with the reason.
func unread() map[string]string {
	const beside = "the checkpoint has it, and the log has signed that; nobody has signed the field beside it"
	const record = ".verificationMaterial.tlogEntries[0]"
	reasons := map[string]string{
		record + ".inclusionProof.rootHash": beside,
		record + ".inclusionProof.treeSize": beside,
		".dsseEnvelope.signatures[0].keyid": "the policy names the keys; the name in the envelope is a hint that nobody has signed",
	}
	for _, field := range []string{"", ".kind", ".version"} {
		reasons[record+".kindVersion"+field] = "the record itself has its type; nobody has signed the one beside it"
	}
	return reasons
}

// TestEveryField: both judge alike whatever is done to one field of a bundle, except to those that berth does not read.
func TestEveryField(t *testing.T) {
	k := keyless.New()
	tr := trusting(k)
	var good any
	if err := json.Unmarshal(made(k, nil), &good); err != nil {
		t.Fatal(err)
	}
	reasons, judged := unread(), 0
	for _, field := range fieldsOf(good, "") {
		for name, change := range changes() {
			data := encoded(t, changedAt(good, "", field, change))
			judged++
			berth, reference := tr.berth(t, policy.Signature{Place: "bundle", Bundle: data}), tr.reference(t, data, signsImage(t))
			_, argued := reasons[field]
			switch {
			case (berth == nil) == (reference == nil):
			case !argued:
				t.Errorf("%s, %s: berth says %v, sigstore-go says %v", field, name, berth, reference)
			case berth != nil:
				t.Errorf("%s, %s: berth reads it: %v", field, name, berth)
			}
		}
	}
	if judged < 100 {
		t.Errorf("%d bundles were judged, want at least 100", judged)
	}
}

// changes are what is done to a field. They return nil to remove it.
func changes() map[string]func(any) any {
	return map[string]func(any) any{
		"removed":  func(any) any { return nil },
		"empty":    func(any) any { return "" },
		"a number": func(any) any { return 1 },
		"an object": func(any) any {
			return map[string]any{}
		},
		"a list": func(any) any { return []any{} },
		"changed": func(value any) any {
			text, ok := value.(string)
			if !ok {
				return value
			}
			if data, err := base64.StdEncoding.DecodeString(text); err == nil && len(data) > 8 {
				return flip(data)
			}
			return text + "1"
		},
	}
}

// fieldsOf lists the fields of a value of JSON by their paths.
func fieldsOf(value any, path string) []string {
	var all []string
	switch value := value.(type) {
	case map[string]any:
		for _, name := range slices.Sorted(maps.Keys(value)) {
			all = append(all, path+"."+name)
			all = append(all, fieldsOf(value[name], path+"."+name)...)
		}
	case []any:
		for i := range value {
			all = append(all, fmt.Sprintf("%s[%d]", path, i))
			all = append(all, fieldsOf(value[i], fmt.Sprintf("%s[%d]", path, i))...)
		}
	}
	return all
}

// changedAt is a value of JSON with a change at a path.
func changedAt(value any, path, at string, change func(any) any) any {
	if path == at {
		return change(value)
	}
	switch value := value.(type) {
	case map[string]any:
		fields := map[string]any{}
		for name, old := range value {
			if field := changedAt(old, path+"."+name, at, change); field != nil {
				fields[name] = field
			}
		}
		return fields
	case []any:
		list := []any{}
		for i, old := range value {
			if item := changedAt(old, fmt.Sprintf("%s[%d]", path, i), at, change); item != nil {
				list = append(list, item)
			}
		}
		return list
	}
	return value
}
