package sigstore

import (
	"bytes"
	"crypto"
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/berthrun/berth/internal/image/imagetest/keyless"
)

// TestPromises: what the log has signed of a record.
func TestPromises(t *testing.T) {
	k, second := keyless.New(), keyless.New()
	changed := func(change func(p *keyless.Parts, record map[string]any)) []byte {
		return made(k, func(p *keyless.Parts) { change(p, p.Records[0]) })
	}
	// elsewhere is a log with the key of the first and the identity of the second.
	several := trusting(k)
	several.logs = []*keyless.Keyless{second, k}
	started, ended := *trusting(k), *trusting(k)
	started.from, ended.until = k.Now.Add(5*time.Minute), k.Now
	const unsigned, nobody = "not signed by a trusted log", "not enough verified log entries"
	const periods = "policy.json has no field for the time in which a log or an authority is trusted; its file names the keys that are"
	check(t, trusting(k), []judged{
		{name: "the promise", bundle: made(k, nil)},
		{name: "the second of two logs", bundle: made(k, nil), trust: several},
		{name: "another log", bundle: changed(func(p *keyless.Parts, _ map[string]any) {
			p.Records[0] = second.Record(p.Records[0]["canonicalizedBody"].([]byte), within(k))
		}), berth: unsigned, reference: nobody},
		{name: "the key of another log", bundle: made(k, nil), trust: &trust{root: k.Root, logs: []*keyless.Keyless{second}, from: time.Unix(1, 0)}, berth: unsigned, reference: nobody},
		{name: "no record", bundle: changed(func(p *keyless.Parts, _ map[string]any) { p.Records = nil }), berth: "0 records", reference: nobody},
		{name: "no promise", bundle: changed(func(_ *keyless.Parts, r map[string]any) { delete(r, "inclusionPromise") }), berth: "no signed time", reference: "integrated timestamps"},
		{name: "an empty promise", bundle: changed(func(_ *keyless.Parts, r map[string]any) {
			r["inclusionPromise"] = map[string]any{"signedEntryTimestamp": ""}
		}), berth: "no signed time", reference: "integrated timestamps"},
		{name: "a changed promise", bundle: changed(func(p *keyless.Parts, _ map[string]any) {
			field := p.Field("inclusionPromise")
			field["signedEntryTimestamp"] = flip(field["signedEntryTimestamp"].([]byte))
		}), berth: unsigned, reference: nobody},
		{name: "the promise of another log", bundle: changed(func(p *keyless.Parts, r map[string]any) {
			p.Field("inclusionPromise")["signedEntryTimestamp"] = second.Promise(r["canonicalizedBody"].([]byte), within(k))
		}), trust: several, berth: unsigned, reference: nobody},
		{name: "another time", bundle: changed(func(_ *keyless.Parts, r map[string]any) { r["integratedTime"] = "1700000061" }), berth: unsigned, reference: nobody},
		{name: "no time", bundle: changed(func(_ *keyless.Parts, r map[string]any) { delete(r, "integratedTime") }), berth: unsigned, reference: nobody},
		{name: "another index", bundle: changed(func(_ *keyless.Parts, r map[string]any) { r["logIndex"] = "8" }), berth: unsigned, reference: nobody},
		{name: "no index", bundle: changed(func(_ *keyless.Parts, r map[string]any) { delete(r, "logIndex") }), berth: unsigned, reference: nobody},
		{name: "an index below 0", bundle: changed(func(_ *keyless.Parts, r map[string]any) { r["logIndex"] = "-7" }), berth: unsigned, reference: "nil value"},
		{name: "another body", bundle: changed(func(_ *keyless.Parts, r map[string]any) {
			r["canonicalizedBody"] = bytes.Replace(r["canonicalizedBody"].([]byte), []byte(`"spec":{`), []byte(`"spec": {`), 1)
		}), berth: unsigned, reference: nobody},
		{name: "the identity of another log", bundle: changed(func(_ *keyless.Parts, r map[string]any) { r["logId"] = map[string]any{"keyId": second.LogID()} }), trust: several, berth: unsigned, reference: nobody},
		{name: "the identity of a log that nobody trusts", bundle: changed(func(_ *keyless.Parts, r map[string]any) { r["logId"] = map[string]any{"keyId": second.LogID()} }), berth: unsigned, reference: nobody},
		{name: "no identity of the log", bundle: changed(func(_ *keyless.Parts, r map[string]any) { delete(r, "logId") }), berth: unsigned, reference: "nil value"},
		{name: "no type of the record", bundle: changed(func(_ *keyless.Parts, r map[string]any) { delete(r, "kindVersion") }), reference: "nil value", why: "the record itself has its type; nobody has signed the one beside it"},
		{name: "another type of the record beside it", bundle: changed(func(_ *keyless.Parts, r map[string]any) {
			r["kindVersion"] = map[string]any{"kind": "hashedrekord", "version": "0.0.1"}
		})},
		{name: "before the log's key is valid", bundle: made(k, nil), trust: &started, reference: nobody, why: periods},
		{name: "after the log's key is valid", bundle: made(k, nil), trust: &ended, reference: nobody, why: periods},
	})
}

// TestRecords: what is in a record, and how many there are.
func TestRecords(t *testing.T) {
	k, second := keyless.New(), keyless.New()
	body := func(from, to string) []byte {
		return recorded(k, func(body []byte) []byte { return replaced(t, body, from, to) })
	}
	more := func(change func(p *keyless.Parts) []map[string]any) []byte {
		return made(k, func(p *keyless.Parts) { p.Records = change(p) })
	}
	one := func(p *keyless.Parts, log *keyless.Keyless) map[string]any {
		return log.Record(p.Records[0]["canonicalizedBody"].([]byte), within(k))
	}
	both := trusting(k)
	both.logs = append(both.logs, second)
	_, cert := k.Issue(email, issuer)
	const enough = "one record that proves the signature is enough: anybody can leave the others out"
	check(t, trusting(k), []judged{
		{name: "a record of another bundle", bundle: made(k, func(p *keyless.Parts) { p.Records = recordsOf(k) }), berth: "another signature", reference: "signature does not match"},
		{name: "a record of another certificate", bundle: made(k, func(p *keyless.Parts) {
			p.Records[0] = k.Record(keyless.EnvelopeRecord(p.Signatures[0], p.Payload, keyless.PEM(cert)), within(k))
		}), berth: "another certificate", reference: "certificate does not match"},
		{name: "a record of another payload", bundle: made(k, func(p *keyless.Parts) {
			p.Records[0] = k.Record(keyless.EnvelopeRecord(p.Signatures[0], flip(p.Payload), keyless.PEM(p.Certificate)), within(k))
		}), berth: "another payload", reference: "does not match envelope payload hash"},
		{name: "a record of the key alone", bundle: made(k, func(p *keyless.Parts) {
			p.Records[0] = k.Record(keyless.EnvelopeRecord(p.Signatures[0], p.Payload, second.CA.PublicKey()), within(k))
		}), berth: "another certificate", reference: "certificate does not match"},
		{name: "a record of a claim", bundle: made(k, func(p *keyless.Parts) {
			p.Records[0] = k.Record(keyless.HashedRecord(crypto.SHA256, p.Signatures[0], p.Payload, keyless.PEM(p.Certificate)), within(k))
		}), berth: `"hashedrekord"`, reference: "not a recognizable"},
		{name: "an unknown type", bundle: body(`"kind":"dsse"`, `"kind":"esse"`), berth: `"esse"`, reference: "not a recognizable"},
		{name: "an unknown version", bundle: body(`"apiVersion":"0.0.1"`, `"apiVersion":"0.0.9"`), berth: `of version "0.0.9"`, reference: "not a recognizable"},
		{name: "no version", bundle: body(`"apiVersion":"0.0.1",`, ``), berth: `of version ""`, reference: "not a recognizable"},
		{name: "another algorithm", bundle: body(`"sha256","value":"`+hexOf(keyless.Statement(image, imageDigest())), `"sha512","value":"`+hexOf(keyless.Statement(image, imageDigest()))), berth: `"sha512"`, reference: "not a recognizable"},
		{name: "no JSON", bundle: recorded(k, func([]byte) []byte { return []byte("body") }), berth: "not Rekor's", reference: "not a recognizable"},
		{name: "an empty record", bundle: recorded(k, func([]byte) []byte { return []byte{} }), berth: "not Rekor's", reference: "nil value"},
		{
			name: "two signatures in the record", bundle: body(`"signatures":[`, `"signatures":[{"signature":"AA==","verifier":"AA=="},`), berth: "of one signature", reference: "signature does not match",
		},
		{name: "a second log that nobody trusts", bundle: more(func(p *keyless.Parts) []map[string]any { return append(p.Records, one(p, second)) })},
		{name: "a first log that nobody trusts", bundle: more(func(p *keyless.Parts) []map[string]any { return []map[string]any{one(p, second), p.Records[0]} })},
		{name: "two logs", bundle: more(func(p *keyless.Parts) []map[string]any { return append(p.Records, one(p, second)) }), trust: both},
		{name: "two logs that nobody trusts", bundle: more(func(p *keyless.Parts) []map[string]any {
			return []map[string]any{one(p, second), one(p, keyless.New())}
		}), berth: "not signed by a trusted log", reference: "not enough verified log entries"},
		{
			name: "the record twice", bundle: more(func(p *keyless.Parts) []map[string]any { return append(p.Records, p.Records[0]) }), reference: "duplicate",
			why: enough,
		},
		{
			name: "a record of another signature beside it", bundle: more(func(p *keyless.Parts) []map[string]any {
				other := second.Record(recordsOf(k)[0]["canonicalizedBody"].([]byte), within(k))
				return append(p.Records, other)
			}), trust: both, reference: "signature does not match", why: enough,
		},
		{name: "32 records", bundle: more(func(p *keyless.Parts) []map[string]any { return many(p, second, within(k), 31) })},
		{name: "33 records", bundle: more(func(p *keyless.Parts) []map[string]any { return many(p, second, within(k), 32) }), berth: "33 records", reference: "too many"},
	})
}

// many is some records of a log that differ in their index, and the record of the bundle.
func many(p *keyless.Parts, log *keyless.Keyless, at time.Time, count int) []map[string]any {
	var all []map[string]any
	for i := range count {
		record := log.Record(p.Records[0]["canonicalizedBody"].([]byte), at)
		record["logIndex"] = i
		all = append(all, record)
	}
	return append(all, p.Records...)
}

// recordsOf are the records of another bundle.
func recordsOf(k *keyless.Keyless) []map[string]any {
	key, cert := k.Issue(email, issuer)
	return k.Bundle(keyless.Statement(image, imageDigest()), key, cert, within(k)).Records
}

// TestProofs: whether a record is in the tree that the log has signed.
func TestProofs(t *testing.T) {
	k, second := keyless.New(), keyless.New()
	changed := func(change func(proof map[string]any)) []byte {
		return made(k, func(p *keyless.Parts) { change(p.Field("inclusionProof")) })
	}
	checkpoint := func(change func(envelope string, proof map[string]any) string) []byte {
		return changed(func(proof map[string]any) {
			envelope := proof["checkpoint"].(map[string]any)
			envelope["envelope"] = change(envelope["envelope"].(string), proof)
		})
	}
	both := trusting(k)
	both.logs = append(both.logs, second)
	const nowhere, unsigned = "does not lead to the root", "no checkpoint that the log has signed"
	const beside = "the checkpoint has it, and the log has signed that; nobody has signed the field beside it"
	check(t, trusting(k), []judged{
		{name: "the proof", bundle: changed(func(map[string]any) {})},
		{name: "no proof", bundle: made(k, func(p *keyless.Parts) { delete(p.Records[0], "inclusionProof") }), berth: "no proof of inclusion", reference: "inclusion proof missing"},
		{name: "an empty proof", bundle: made(k, func(p *keyless.Parts) { p.Records[0]["inclusionProof"] = map[string]any{} }), berth: "no proof of inclusion", reference: "missing required checkpoint"},
		{name: "another index", bundle: changed(func(p map[string]any) { p["logIndex"] = "3" }), berth: nowhere, reference: "root"},
		{name: "an index below 0", bundle: changed(func(p map[string]any) { p["logIndex"] = "-1" }), berth: nowhere, reference: "beyond size"},
		{name: "an index beyond the tree", bundle: changed(func(p map[string]any) { p["logIndex"] = "5" }), berth: nowhere, reference: "beyond size"},
		{name: "a changed hash", bundle: changed(func(p map[string]any) { p["hashes"].([][]byte)[1][0] ^= 1 }), berth: nowhere, reference: "root"},
		{name: "a hash too few", bundle: changed(func(p map[string]any) { p["hashes"] = p["hashes"].([][]byte)[1:] }), berth: nowhere, reference: "wrong proof size"},
		{name: "a hash too many", bundle: changed(func(p map[string]any) { p["hashes"] = append(p["hashes"].([][]byte), keyless.LeafOf(nil)) }), berth: nowhere, reference: "wrong proof size"},
		{name: "no hash", bundle: changed(func(p map[string]any) { delete(p, "hashes") }), berth: nowhere, reference: "wrong proof size"},
		{name: "a short hash", bundle: changed(func(p map[string]any) { p["hashes"].([][]byte)[0] = []byte{1} }), berth: "a hash of 1 bytes", reference: "root"},
		{name: "another size of the tree", bundle: changed(func(p map[string]any) { p["treeSize"] = "3" }), reference: "wrong proof size", why: beside},
		{name: "no size of the tree", bundle: changed(func(p map[string]any) { delete(p, "treeSize") }), reference: "beyond size", why: beside},
		{name: "another root", bundle: changed(func(p map[string]any) { p["rootHash"] = keyless.LeafOf(nil) }), reference: "root", why: beside},
		{name: "no root", bundle: changed(func(p map[string]any) { delete(p, "rootHash") }), reference: "root", why: beside},
		{name: "no checkpoint", bundle: changed(func(p map[string]any) { delete(p, "checkpoint") }), berth: "no proof of inclusion", reference: "missing required checkpoint"},
		{name: "an empty checkpoint", bundle: checkpoint(func(string, map[string]any) string { return "" }), berth: "no proof of inclusion", reference: "checkpoint empty"},
		{name: "a checkpoint of another log", bundle: checkpoint(func(_ string, p map[string]any) string { return second.Checkpoint(5, p["rootHash"].([]byte)) }), berth: unsigned, reference: "checkpoint did not verify"},
		{name: "a checkpoint of another log that is trusted", trust: both, bundle: checkpoint(func(_ string, p map[string]any) string { return second.Checkpoint(5, p["rootHash"].([]byte)) }), berth: unsigned, reference: "checkpoint did not verify"},
		{name: "a checkpoint of another root", bundle: checkpoint(func(string, map[string]any) string { return k.Checkpoint(5, keyless.LeafOf(nil)) }), berth: nowhere, reference: "does not match signed tree head"},
		{name: "a changed size", bundle: checkpoint(func(text string, _ map[string]any) string { return strings.Replace(text, "\n5\n", "\n6\n", 1) }), berth: unsigned, reference: "checkpoint did not verify"},
		{name: "a changed name", bundle: checkpoint(func(text string, _ map[string]any) string {
			return strings.Replace(text, "log.test - 42", "log.test - 43", 1)
		}), berth: unsigned, reference: "checkpoint did not verify"},
		{
			name: "a checkpoint of a smaller tree", bundle: checkpoint(func(_ string, p map[string]any) string { return k.Checkpoint(3, p["rootHash"].([]byte)) }), berth: nowhere,
			why: "the log has signed another size than that for which the proof holds; the reference compares the root alone",
		},
		{name: "a checkpoint of a tree below 0", bundle: checkpoint(func(_ string, p map[string]any) string { return k.Checkpoint(-5, p["rootHash"].([]byte)) }), berth: nowhere, reference: "size invalid"},
		{name: "a checkpoint without a signature", bundle: checkpoint(func(text string, _ map[string]any) string { return text[:strings.Index(text, "\u2014")] }), berth: unsigned, reference: "malformed note"},
		{name: "a checkpoint of two lines", bundle: checkpoint(func(string, map[string]any) string { return "log.test - 42\n5\n\n" + k.NoteLine("log.test - 42\n5\n") }), berth: "less than three lines", reference: "checkpoint"},
		{name: "a checkpoint with another line", bundle: checkpoint(func(text string, _ map[string]any) string {
			text = text[:strings.Index(text, "\n\n")+1] + "Timestamp: 1\n"
			return text + "\n" + k.NoteLine(text)
		})},
		{
			name: "a checkpoint with the signature of a witness", bundle: checkpoint(func(text string, _ map[string]any) string {
				return text + "\u2014 witness.test " + base64.StdEncoding.EncodeToString([]byte("signature")) + "\n"
			}), reference: "checkpoint did not verify",
			why: "witnesses sign checkpoints beside the log; the form of signed notes has unknown signatures skipped",
		},
		{
			name: "a checkpoint with the signature of a witness before", bundle: checkpoint(func(text string, _ map[string]any) string {
				return strings.Replace(text, "\u2014", "\u2014 witness.test "+base64.StdEncoding.EncodeToString([]byte("signature"))+"\n\u2014", 1)
			}), reference: "checkpoint did not verify",
			why: "witnesses sign checkpoints beside the log; the form of signed notes has unknown signatures skipped",
		},
		{name: "a checkpoint with a wrong signature of the log", bundle: checkpoint(func(text string, _ map[string]any) string {
			return text[:strings.Index(text, "\u2014")] + k.NoteLine("other\n")
		}), berth: unsigned, reference: "checkpoint did not verify"},
	})
}
