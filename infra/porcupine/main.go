// Command porcupine checks that histories of commits are linearizable.
//
// It reads histories as JSON lines, one operation per line, an empty line between histories, and
// prints one line per history: "ok", "illegal" or "unknown" (out of time). The model knows nothing
// of how the log works: a table is its head version and, for each thing in it, the version that
// touched it last. A commit makes the next version and may touch nothing that changed since it was
// read; a refusal must have such a change for its reason.
package main

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"math"
	"os"
	"time"

	"github.com/anishathalye/porcupine"
)

// Effect is what an operation asks of one table.
type Effect struct {
	Table   string   `json:"table"`   // the incarnation
	Kind    string   `json:"kind"`    // create, drop, or anything else
	Version int      `json:"version"` // the version that it made
	Read    int      `json:"read"`    // the version that it was made from
	Needs   []string `json:"needs"`   // must not have changed since Read
	Touches []string `json:"touches"` // changes with Version
	Excuses []string `json:"excuses"` // a refusal needs one that changed since Read
}

// Operation is a transaction as its client saw it; Return is 0 if no answer came.
type Operation struct {
	Client    int      `json:"client"`
	Call      int64    `json:"call"`
	Return    int64    `json:"return"`
	Committed bool     `json:"committed"`
	Effects   []Effect `json:"effects"`
}

type table struct {
	head    int
	dropped bool
	last    map[string]int
}

type state map[string]*table

func (s state) with(name string, changed *table) state {
	next := make(state, len(s)+1)
	for key, value := range s {
		next[key] = value
	}
	next[name] = changed
	return next
}

func (s state) commit(effect Effect) (state, bool) {
	found := s[effect.Table]
	if effect.Kind == "rename" {
		return s, found != nil && !found.dropped
	}
	if effect.Kind == "create" {
		return s.with(effect.Table, &table{head: 1, last: map[string]int{}}), found == nil
	}
	if found == nil || found.dropped {
		return s, false
	}
	if effect.Kind == "drop" {
		return s.with(effect.Table, &table{head: found.head, dropped: true, last: found.last}), true
	}
	if effect.Version != found.head+1 || found.changed(effect.Needs, effect.Read) {
		return s, false
	}
	last := make(map[string]int, len(found.last)+len(effect.Touches))
	for key, value := range found.last {
		last[key] = value
	}
	for _, key := range effect.Touches {
		last[key] = effect.Version
	}
	return s.with(effect.Table, &table{head: effect.Version, last: last}), true
}

func (t *table) changed(things []string, read int) bool {
	for _, thing := range things {
		if t.last[thing] > read {
			return true
		}
	}
	return false
}

func (s state) mayRefuse(effects []Effect) bool {
	for _, effect := range effects {
		found := s[effect.Table]
		if found == nil || found.dropped || found.changed(effect.Excuses, effect.Read) {
			return true
		}
	}
	return false
}

func equal(a, b interface{}) bool {
	one, other := a.(state), b.(state)
	if len(one) != len(other) {
		return false
	}
	for name, mine := range one {
		theirs := other[name]
		if theirs == nil || mine.head != theirs.head || mine.dropped != theirs.dropped {
			return false
		}
		if mine == theirs {
			continue
		}
		if len(mine.last) != len(theirs.last) {
			return false
		}
		for key, value := range mine.last {
			if theirs.last[key] != value {
				return false
			}
		}
	}
	return true
}

var model = porcupine.Model{
	Init: func() interface{} { return state{} },
	Step: func(before, input, _ interface{}) (bool, interface{}) {
		current, operation := before.(state), input.(Operation)
		if !operation.Committed {
			return current.mayRefuse(operation.Effects), current
		}
		for _, effect := range operation.Effects {
			next, ok := current.commit(effect)
			if !ok {
				return false, before
			}
			current = next
		}
		return true, current
	},
	Equal: equal,
}

func check(history []porcupine.Operation, timeout time.Duration) string {
	switch porcupine.CheckOperationsTimeout(model, history, timeout) {
	case porcupine.Ok:
		return "ok"
	case porcupine.Illegal:
		return "illegal"
	default:
		return "unknown"
	}
}

func main() {
	timeout := flag.Duration("timeout", 30*time.Second, "for each history")
	flag.Parse()
	lines := bufio.NewScanner(os.Stdin)
	lines.Buffer(nil, 64<<20)
	var history []porcupine.Operation
	for lines.Scan() {
		if len(lines.Bytes()) == 0 {
			fmt.Println(check(history, *timeout))
			history = nil
			continue
		}
		var operation Operation
		if err := json.Unmarshal(lines.Bytes(), &operation); err != nil {
			log.Fatalf("line %q: %v", lines.Text(), err)
		}
		end := operation.Return
		if end == 0 {
			end = math.MaxInt64
		}
		history = append(history, porcupine.Operation{
			ClientId: operation.Client, Input: operation, Call: operation.Call, Return: end,
		})
	}
	if err := lines.Err(); err != nil {
		log.Fatal(err)
	}
	if len(history) > 0 {
		fmt.Println(check(history, *timeout))
	}
}
