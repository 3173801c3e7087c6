"""The index of tools: it follows the catalog, takes any query as data, and finds what the catalog lists alone."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.util import find_spec
from typing import ClassVar

import pytest
from hypothesis import HealthCheck, Phase, given, settings, strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from holdfast.core.catalog import Catalog, CatalogEntry, Item, Listing
from holdfast.hub import tool_index
from holdfast.hub.tool_index import CANDIDATES, StaticEmbeddings, ToolIndex, VectorTable
from tests.harness.catalogs import configured

pytestmark = pytest.mark.requirement("FIND-3")

SETTINGS = settings(
    derandomize=True,
    database=None,
    deadline=None,
    max_examples=40,
    stateful_step_count=15,
    phases=(Phase.generate,),
    suppress_health_check=list(HealthCheck),
)
DESCRIPTIONS = st.sampled_from(
    ["Creates an issue.", "Lists open issues", "Reads a file", "Merges PDF files", "天气预报", "", "a\ud800b"]
)
TOOLS = st.dictionaries(st.sampled_from(["create_issue", "readFile", "merge-pdf", "forecast", "x"]), DESCRIPTIONS)
SERVERS = st.sampled_from(["github", "files", "weather"])
QUERIES = ("create an issue", "read files", "天气", "x", "merge pdf documents")
HOSTILE = [
    '"',
    "'; DROP TABLE tools; --",
    "name:create* AND NOT server:x",
    'NEAR("a" "b", 1) {name} : ^a + "',
    "\x00 NUL \x1b[31m",
    "\ud800 half a pair",
    "🔥 ½ ﬁle ǅ",
    " ".join(f"w{number}" for number in range(2_000)),
    "",
    "?!…",
]


def tool(name: str, description: str, **more: object) -> Item:
    return Item(name, {"name": name, "description": description, **more})


def catalog_of(**servers: dict[str, str]) -> Catalog:
    listings = [
        Listing(server=server, generation=1, tools=tuple(tool(*one) for one in tools.items()))
        for server, tools in servers.items()
    ]
    return Catalog().publish_all(listings)


def anything(_: CatalogEntry) -> bool:
    return True


def found(
    index: ToolIndex,
    catalog: Catalog,
    query: str,
    limit: int = 5,
    allowed: Callable[[CatalogEntry], bool] = anything,
) -> list[str]:
    return [entry.name for entry in index.search_now(catalog, query, limit, allowed)]


def by_words() -> ToolIndex:
    return ToolIndex(lambda: None)


@pytest.fixture(scope="module")
def embeddings() -> StaticEmbeddings:
    installed = StaticEmbeddings.installed()
    if installed is None:
        pytest.skip("the extra `find` is not installed")
    return installed


class AnyChangesOfACatalog(RuleBasedStateMachine):
    index_type: ClassVar[type[ToolIndex]] = ToolIndex

    @initialize()
    def begin(self) -> None:
        self.catalog = Catalog()
        self.index = self.index_type(lambda: None)
        self.generation = 0

    @rule(server=SERVERS, tools=TOOLS)
    def publish(self, server: str, tools: dict[str, str]) -> None:
        self.generation += 1
        items = tuple(tool(*one) for one in tools.items())
        self.catalog = self.catalog.publish(Listing(server=server, generation=self.generation, tools=items))

    @rule(server=SERVERS)
    def withdraw(self, server: str) -> None:
        self.catalog = self.catalog.withdraw(server)

    @rule(server=SERVERS)
    def reinstate(self, server: str) -> None:
        self.catalog = self.catalog.reinstate(server)

    @rule(server=SERVERS)
    def remove(self, server: str) -> None:
        self.catalog = self.catalog.remove(server)

    @rule(server=SERVERS, prefix=st.sampled_from([None, "", "p"]))
    def name_otherwise(self, server: str, prefix: str | None) -> None:
        self.catalog = configured(self.catalog, server, prefix=prefix)

    @invariant()
    def it_equals_an_index_made_from_the_beginning(self) -> None:
        fresh = by_words()
        for query in QUERIES:
            assert found(self.index, self.catalog, query) == found(fresh, self.catalog, query), "as made now"


def test_after_any_changes_the_index_equals_one_made_from_the_beginning() -> None:
    run_state_machine_as_test(AnyChangesOfACatalog, settings=SETTINGS)


class ForgetsToDelete(ToolIndex):
    def _follow(self, catalog: Catalog) -> None:
        self._rows = {server: [] for server in self._rows} if self._keys else self._rows
        super()._follow(catalog)


class FollowsNewServersAlone(ToolIndex):
    def _follow(self, catalog: Catalog) -> None:
        self._indexed.update({name: source for name, source in catalog.servers.items() if name in self._indexed})
        super()._follow(catalog)


@pytest.mark.parametrize("mutant", [ForgetsToDelete, FollowsNewServersAlone])
def test_an_index_that_does_not_follow_is_caught(mutant: type[ToolIndex]) -> None:
    mutated = type("Mutated", (AnyChangesOfACatalog,), {"index_type": mutant})
    with pytest.raises(Exception, match=r"as made now|UNIQUE|constraint"):
        run_state_machine_as_test(mutated, settings=settings(SETTINGS, max_examples=200))


def test_a_tool_is_found_by_other_forms_of_its_words() -> None:
    catalog = catalog_of(github={"createIssue": "Opens a ticket"}, files={"read_file": "Reads a file from disk"})
    assert found(by_words(), catalog, "creating issues")[0] == "github__createIssue"
    assert found(by_words(), catalog, "reading of files")[0] == "files__read_file"


def test_the_name_of_a_server_finds_its_tools() -> None:
    catalog = catalog_of(weather={"get": "Gives it"}, news={"get": "Gives it"})
    assert found(by_words(), catalog, "news please") == ["news__get"]


def test_chinese_words_are_found_inside_chinese_sentences() -> None:
    catalog = catalog_of(a={"one": "查询天气预报信息"}, b={"two": "使用必应搜索关键词"})
    assert found(by_words(), catalog, "天气") == ["a__one"]
    assert found(by_words(), catalog, "搜索") == ["b__two"]


@pytest.mark.parametrize("query", HOSTILE)
def test_the_syntax_of_the_engine_in_a_query_is_data(query: str) -> None:
    catalog = catalog_of(a={"create_issue": "Creates"}, b={"w1": "One"})
    index = by_words()
    found(index, catalog, query)
    assert found(index, catalog, "create an issue") == ["a__create_issue"], "the index is whole afterwards"


@given(query=st.text(max_size=60), description=st.text(max_size=60))
@settings(max_examples=100, deadline=None, derandomize=True)
def test_any_query_over_any_tool_has_an_answer_in_bounds(query: str, description: str) -> None:
    catalog = catalog_of(a={"t": description, "create_issue": "Creates"}, b={"x": description})
    assert {*found(by_words(), catalog, query, 2)} <= {"a__t", "a__create_issue", "b__x"}
    assert len(found(by_words(), catalog, query, 2)) <= 2


WORDS = st.sampled_from(["create", "issue", "File", "天气预报", "a", "ﬁ½", "\ud800", "x_y-z", "\x00"])
TEXTS = st.lists(WORDS | st.text(max_size=8), max_size=12).map(" ".join)
SCHEMAS = st.dictionaries(TEXTS, st.none() | st.fixed_dictionaries({"type": TEXTS, "description": TEXTS}), max_size=3)
CATALOGS = st.dictionaries(
    TEXTS.filter(bool), st.dictionaries(TEXTS, st.tuples(TEXTS, SCHEMAS), max_size=6), max_size=5
)
ASKED = TEXTS | st.sampled_from(HOSTILE) | TEXTS.map(lambda text: (text or "x") * (10_240 // max(len(text), 1)))


@given(servers=CATALOGS, query=ASKED, limit=st.integers(1, 20), forbidden=st.integers(0, 3))
@settings(max_examples=60, deadline=None, derandomize=True, suppress_health_check=list(HealthCheck))
def test_for_any_catalog_and_any_query_the_answer_is_in_bounds_and_holds_nothing_forbidden(
    servers: dict[str, dict[str, tuple[str, dict[str, object]]]], query: str, limit: int, forbidden: int
) -> None:
    """An index that shows a candidate without asking for it, or twice, or more of them, fails here."""
    listings = [
        Listing(
            server=server,
            generation=1,
            tools=tuple(
                tool(name, text, inputSchema={"properties": schema}) for name, (text, schema) in tools.items() if name
            ),
        )
        for server, tools in servers.items()
    ]
    catalog = Catalog().publish_all(listings)

    def allowed(entry: CatalogEntry) -> bool:
        return len(entry.name) % 4 != forbidden

    names = found(by_words(), catalog, query, limit, allowed)
    listed = {entry.name for entry in catalog.tools}
    assert len(names) == len({*names}) <= limit
    assert {*names} <= listed
    assert not [name for name in names if len(name) % 4 == forbidden]


@pytest.mark.requirement("FIND-4")
def test_a_synonym_finds_a_tool_and_counts_less_than_the_word_itself() -> None:
    catalog = catalog_of(
        pictures={"picture_resize": "Changes the size"}, photos={"photo_resize": "Changes the size"}, z={"z": "Other"}
    )
    names = found(by_words(), catalog, "photo")
    assert names == ["photos__photo_resize", "pictures__picture_resize"]


@pytest.mark.requirement("FIND-4")
@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("what time is it?", "time__get_current_time"),
        ("show me https://example.com/", "net__fetch"),
        ("undo my last commit", "git__git_reset"),
        ("has my code any mistakes", "eslint__lint_files"),
    ],
)
def test_a_plain_question_finds_the_plain_tool(question: str, answer: str) -> None:
    catalog = catalog_of(
        time={"get_current_time": "Get current time in a specific timezone"},
        net={"fetch": "Fetches a URL from the internet"},
        git={"git_reset": "Reset current HEAD to a state"},
        eslint={"lint_files": "Lint files using ESLint"},
    )
    assert found(by_words(), catalog, question)[0] == answer


@pytest.mark.requirement("FIND-4")
def test_a_word_that_is_repeated_counts_more() -> None:
    catalog = catalog_of(a={"alpha": "It is one"}, b={"beta": "It is one"})
    assert found(by_words(), catalog, "alpha beta beta")[0] == "b__beta"
    assert found(by_words(), catalog, "beta alpha alpha")[0] == "a__alpha"


@pytest.mark.requirement("FIND-4")
def test_the_first_sentence_counts_more_than_the_rest() -> None:
    catalog = catalog_of(
        a={"t": "Does something. It also mentions invoices in passing."},
        b={"t": "Does invoices in passing. It also mentions something."},
    )
    assert found(by_words(), catalog, "invoices")[0] == "b__t"


def test_a_tool_that_is_not_allowed_is_never_found_however_well_it_fits() -> None:
    many = {f"create_issue_{number}": "Creates an issue" for number in range(CANDIDATES + 50)}
    catalog = catalog_of(denied=many, allowed={"note": "Mentions an issue once, among other words"})
    names = found(by_words(), catalog, "create an issue", allowed=lambda entry: entry.server == "allowed")
    assert names == ["allowed__note"]


def test_an_empty_catalog_and_an_empty_query_find_nothing() -> None:
    assert found(by_words(), Catalog(), "anything") == []
    assert found(by_words(), catalog_of(a={"t": "x"}), "") == []


@pytest.mark.anyio
async def test_a_closed_index_can_be_used_again() -> None:
    index, catalog = by_words(), catalog_of(a={"t": "x"})
    for _ in range(2):
        assert [one.name for one in await index.search(catalog, "x", limit=5, allowed=anything)] == ["a__t"]
        assert repr(index) == "<ToolIndex of 1 tools>"
        await index.close()


def test_embeddings_find_a_tool_by_what_it_means(embeddings: StaticEmbeddings) -> None:
    catalog = catalog_of(
        documents={"combine_documents": "Join several documents into one"},
        weather={"forecast": "Tells whether it will rain tomorrow"},
        money={"convert_currency": "Changes dollars into euros"},
    )
    assert found(by_words(), catalog, "umbrella needed?") == []
    fused = ToolIndex(lambda: embeddings)
    assert found(fused, catalog, "umbrella needed?")[0] == "weather__forecast"
    assert found(fused, catalog, "merge files")[0] == "documents__combine_documents"
    assert repr(fused) == "<ToolIndex of 3 tools, with embeddings>"


def test_with_embeddings_too_the_index_equals_one_made_from_the_beginning(embeddings: StaticEmbeddings) -> None:
    index = ToolIndex(lambda: embeddings)
    first = catalog_of(a={"create_issue": "Creates"}, b={"x": "One"}, c={"forecast": "Rain"})
    found(index, first, "rain")
    then = first.remove("a").publish(Listing(server="b", generation=2, tools=(tool("y", "Merges PDF files"),)))
    for query in (*QUERIES, *HOSTILE):
        assert found(index, then, query) == found(ToolIndex(lambda: embeddings), then, query)


@pytest.mark.usefixtures("embeddings")
def test_the_package_of_the_table_is_never_imported_because_its_loader_asks_the_network() -> None:
    assert "wordllama" not in sys.modules


def test_a_tool_that_is_gone_leaves_no_vector_and_words_count_beside_the_meaning(embeddings: StaticEmbeddings) -> None:
    table = VectorTable(embeddings)
    assert table.fused("weather", {}, 1.0, -1) == []
    for name, text in (("a", "weather forecast"), ("b", "merge documents"), ("c", "rain and sun")):
        table.set(name, text)
    assert table.fused("weather", {}, 1.0, -1)[0] == "a"
    assert table.fused("weather", {"b": 3.0, "c": 0.3}, 0.5, 1) == ["b"]
    assert table.fused("weather", {"b": 3.0, "c": 1.5}, 0.0, -1) == ["b", "c", "a"]
    table.discard("a")
    table.discard("unknown")
    assert set(table.fused("weather", {}, 1.0, -1)) == {"b", "c"}
    table.set("d", "weather")
    assert table.fused("weather", {}, 1.0, 2)[0] == "d"


def test_what_may_be_shown_is_found_behind_any_number_of_nearer_tools(embeddings: StaticEmbeddings) -> None:
    index = ToolIndex(lambda: embeddings)
    catalog = catalog_of(files={f"t{number:03}": "Merges PDF files" for number in range(CANDIDATES + 9)})
    last = {f"files__t{number:03}" for number in range(CANDIDATES + 4, CANDIDATES + 9)}
    for query in ("combine documents", "merge"):
        assert set(found(index, catalog, query, allowed=lambda entry: entry.name in last)) == last


def test_the_rows_of_a_server_that_is_gone_are_gone_though_nothing_else_changed() -> None:
    index, catalog = by_words(), catalog_of(files={"read": "Reads a file"}, git={"log": "Shows a log"})
    found(index, catalog, "read")
    assert repr(index) == "<ToolIndex of 2 tools>"
    found(index, catalog.remove("git"), "read")
    assert repr(index) == "<ToolIndex of 1 tools>"
    found(index, Catalog(), "read")
    assert repr(index) == "<ToolIndex of 0 tools>"


@pytest.mark.parametrize("missing", ["numpy", "tokenizers", "wordllama"])
def test_without_all_parts_of_the_extra_there_are_no_embeddings(monkeypatch: pytest.MonkeyPatch, missing: str) -> None:
    monkeypatch.setattr(tool_index, "find_spec", lambda name: None if name == missing else find_spec(name))
    assert StaticEmbeddings.installed() is None
