"""Needles: sentences with a key and a value, planted in a text, and the questions that ask for them.

After RULER's needle tasks (NVIDIA/RULER, arXiv 2404.06654). Training, evaluation and the demo share this generator."""

import random
import re
import uuid
from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, get_args

Kind = Literal["number", "word", "uuid"]
KINDS: tuple[Kind, ...] = get_args(Kind)

SENTENCES: dict[Kind, tuple[str, ...]] = {
    "number": (
        "One of the special magic numbers for {key} is: {value}.",
        "The special magic number for {key} is: {value}.",
        "The number for {key} is {value}.",
        "The access code of {key} is {value}.",
        "The number that belongs to {key} is {value}.",
        "Remember that {key} has the number {value}.",
        "Please note the code for {key}: {value}.",
        "For {key}, the number is {value}.",
        "The registered number of {key} is {value}, by the way.",
        "As agreed, {key} was given the number {value}.",
        "The locker of {key} opens with {value}.",
        "Number of {key}: {value}.",
    ),
    "word": (
        "One of the special magic words for {key} is: {value}.",
        "The special magic word for {key} is: {value}.",
        "The password of {key} is {value}.",
        "The word for {key} is {value}.",
        "The code name of {key} is {value}.",
        "Remember that {key} goes with the word {value}.",
        "Please note the password for {key}: {value}.",
        "For {key}, the word is {value}.",
        "As agreed, {key} was given the password {value}.",
        "Password of {key}: {value}.",
    ),
    "uuid": (
        "One of the special magic uuids for {key} is: {value}.",
        "The special magic uuid for {key} is: {value}.",
        "The identifier of {key} is {value}.",
        "The uuid of {key} is {value}.",
        "The record of {key} is filed under {value}.",
        "Please note the uuid for {key}: {value}.",
        "Uuid of {key}: {value}.",
    ),
}
"""Wordings of needles; the note is what stands from the key to the end of the value."""

QUESTIONS: dict[Kind, tuple[str, ...]] = {
    "number": (
        "What is the special magic number for {key}?",
        "What is the special magic number for {key} mentioned in the provided text?",
        "What is the number for {key}?",
        "What is the access code of {key}?",
        "Which number belongs to {key}?",
        "What number does {key} have?",
        "Which code was noted for {key}?",
        "Find the number of {key}.",
    ),
    "word": (
        "What is the special magic word for {key}?",
        "What is the special magic word for {key} mentioned in the provided text?",
        "What is the password of {key}?",
        "Which word belongs to {key}?",
        "What is the code name of {key}?",
        "Find the word for {key}.",
    ),
    "uuid": (
        "What is the special magic uuid for {key}?",
        "What is the special magic uuid for {key} mentioned in the provided text?",
        "What is the identifier of {key}?",
        "Which uuid belongs to {key}?",
        "Find the uuid of {key}.",
    ),
}
"""Wordings of questions; any of them may ask for any needle of the kind."""

REWORDED: dict[Kind, tuple[str, ...]] = {
    "number": (
        "Under which number is {key} listed?",
        "Tell me the digits that were assigned to {key}.",
        "{key}: which number?",
        "Could you look up the code that goes with {key}?",
        "I need the number of {key}, please.",
    ),
    "word": (
        "Which secret word was chosen for {key}?",
        "Tell me the word that was assigned to {key}.",
        "{key}: which word?",
        "Could you look up the password that goes with {key}?",
        "I need the password of {key}, please.",
    ),
    "uuid": (
        "Under which uuid is {key} kept?",
        "Tell me the identifier that was assigned to {key}.",
        "{key}: which uuid?",
        "Could you look up the uuid that goes with {key}?",
        "I need the uuid of {key}, please.",
    ),
}
"""Wordings unseen in supervised training, like those of users. The last of each is in no training at all."""

_ENDS = re.compile(r"\n[ \t\r]*\n\s*|[.!?][\"')\]\u201d\u2019]*\s+")


@dataclass(frozen=True, slots=True)
class Needle:
    """One planted fact."""

    kind: Kind
    key: str
    value: str
    sentence: str
    question: str
    note: str
    """The ideal note: the sentence from the key to the value, verbatim."""


def make_needles(
    rng: random.Random, kind: Kind, n: int, *, words: Sequence[str] = (), share: float = 0.3
) -> list[Needle]:
    """Make `n` needles of one kind with different keys and values, in the same wording.

    Args:
        rng: source of all choices; the same state gives the same needles.
        kind: what the values are.
        n: how many; ask for the first, the others are distractors.
        words: further words for keys and word values, beside the product's own.
        share: how often a key shares a word with the one before it.

    Raises:
        ValueError: more needles than different keys.
    """
    wording = rng.choice(SENTENCES[kind])
    needles: list[Needle] = []
    seen: set[str] = set()
    tries = 0
    while len(needles) < n:
        tries += 1
        if tries > 100 * n + 100:
            raise ValueError(f"{n} needles need more different keys than there are words")
        key = _key(rng, words, needles[-1].key if needles and rng.random() < share else "")
        value = _value(rng, kind, words)
        if key in seen or value in seen or value in key.split("-"):
            continue
        seen.update((key, value))
        needles.append(needle(rng, kind, key, value=value, wording=wording))
    return needles


def needle(rng: random.Random, kind: Kind, key: str, value: str, wording: str = "") -> Needle:
    """Word one needle; its question is worded at random."""
    wording = wording or rng.choice(SENTENCES[kind])
    sentence = wording.format(key=key, value=value)
    note = wording[wording.index("{key}") : wording.index("{value}") + len("{value}")]
    return Needle(
        kind, key, value, sentence=sentence, question=ask(rng, kind, key), note=note.format(key=key, value=value)
    )


def ask(rng: random.Random, kind: Kind, key: str) -> str:
    """Word a question for a key."""
    return rng.choice(QUESTIONS[kind]).format(key=key)


def plant(
    text: str, sentences: Sequence[str], rng: random.Random, depths: Sequence[float] | None = None
) -> tuple[str, list[tuple[int, int]]]:
    """Put sentences into a text, each after the end of a sentence or paragraph.

    Args:
        text: any text; where it has no such end, a sentence goes to its start or end.
        sentences: what to put in.
        rng: chooses the depths where none are given.
        depths: 0 (start) to 1 (end) for each sentence.

    Returns:
        The new text, and each sentence's (start, end) in it, in the order of `sentences`.
    """
    ends = [0, *(match.end() for match in _ENDS.finditer(text)), len(text)]
    chosen = [rng.random() for _ in sentences] if depths is None else list(depths)
    if len(chosen) != len(sentences):
        raise ValueError(f"{len(sentences)} sentences need as many depths, not {len(chosen)}")
    places = sorted((_nearest(ends, depth * len(text)), i) for i, depth in enumerate(chosen))
    spans = [(0, 0)] * len(sentences)
    pieces: list[str] = []
    end = length = 0
    for cut, i in places:
        before = text[end:cut]
        if before:
            pieces.append(before)
            length += len(before)
        if pieces and not pieces[-1][-1:].isspace():
            pieces.append(" ")
            length += 1
        spans[i] = (length, length + len(sentences[i]))
        paragraph = text[:cut].rstrip(" \t").endswith("\n\n") and rng.random() < 0.3
        pieces.append(sentences[i] + ("\n\n" if paragraph else " "))
        length += len(pieces[-1])
        end = cut
    pieces.append(text[end:])
    return "".join(pieces), spans


def _nearest(ends: list[int], position: float) -> int:
    i = bisect_left(ends, position)
    near = ends[max(0, i - 1) : i + 1]
    return min(near, key=lambda end: abs(end - position))


def _key(rng: random.Random, words: Sequence[str], like: str) -> str:
    own = not words or rng.random() < 0.5
    first = rng.choice(ADJECTIVES) if own else rng.choice(words)
    second = rng.choice(NOUNS) if own else rng.choice(words)
    if like and "-" in like:
        left, _, right = like.partition("-")
        return f"{left}-{second}" if rng.random() < 0.5 else f"{first}-{right}"
    return f"{first}-{second}"


def _value(rng: random.Random, kind: Kind, words: Sequence[str]) -> str:
    if kind == "number":
        return str(rng.randrange(1_000_000, 10_000_000))
    if kind == "uuid":
        return str(uuid.UUID(int=rng.getrandbits(128), version=4))
    return rng.choice(words) if words and rng.random() < 0.5 else rng.choice(NOUNS)


_ADJECTIVES = """
able absent active agile alert alpine amber ample ancient angry apt aqua arctic arid ashen astute autumn
avid azure balmy bashful basic beige big bitter black bland blue blunt bold brave breezy brief bright brisk
broad bronze brown busy calm candid careful chilly clean clear clever cloudy coarse cobalt cold common coral
cosy crimson crisp curious curly daily damp dapper daring dark dear deep dense devout dim distant dizzy
double dry dull dusky dusty eager early earnest easy elder electric elegant empty even exact fabled faint
fair faithful famous fancy fast feisty fertile fierce fine firm fiscal flat fleet fluent flying fond formal
frank free fresh frosty frugal full funny gallant gentle giant gifted glad gleaming global glossy golden
good graceful grand gray great green gritty happy hardy harsh hasty hazel heavy hidden high hollow honest
huge humble hungry icy ideal idle indigo inner ivory jade jolly jovial joyful keen kind large late lavish
lazy lean level light lilac little lively lofty lone long loud loyal lucid lucky lunar magenta major mellow
merry mighty mild minor misty modern modest moist mossy muddy mute narrow native neat nimble noble noisy
northern novel oaken odd olive opal open orange outer oval pale patient peaceful pearly perky pink placid
plain polar polite proud prudent purple quaint quick quiet rapid rare ready red regal remote rich ripe
robust rosy rough round royal ruby rugged rural rustic rusty sandy scarlet secret serene shady sharp shiny
short shy silent silken silver simple sleek sleepy slim slow small smart smooth snowy sober soft solar
solemn solid sombre southern spare spicy stable steady stern still stormy strict strong sturdy subtle sunny
superb sweet swift tall tame tan tender thick thin tidy timid tiny tired tranquil true twin upper urban
useful vague valiant vast velvet violet vivid warm wary western wet white wicked wide wild windy wise witty
wooden woolly worthy young zealous zesty
"""
_NOUNS = """
acorn acre airport album alley almond amulet anchor angle ankle antler anvil apple apron arch arena armor
arrow atlas attic avenue badge badger bagel bakery balcony bamboo banana banner barge barley barn barrel
basil basin basket beacon beaver bell bench berry bicycle bishop bison blanket blossom boat bonnet book boot
border bottle boulder bracket branch bread brick bridge broom bucket buckle buffalo bugle bunker butter
button cabin cable cactus camel camera candle canoe canvas canyon captain caravan carbon cargo carpet carrot
cart castle cattle cave cedar cellar cello chalk chapel cherry chest chimney circle citadel clarinet cliff
clock cloud clover coach coast cobra coconut comet compass copper cottage cotton cougar crab cradle crane
crater creek cricket crown crystal curtain cypress dagger daisy desert diamond dolphin donkey door dragon
drawer drum eagle easel echo elbow elm ember engine estate falcon farm feather fern ferry fiddle field finch
flag flame flask flute forest forge fork fossil fountain fox frog galaxy garden garlic gate geyser ginger
giraffe glacier globe glove goat gondola goose granite grape gravel grove guitar gull hammer hammock harbor
harp hawk hazelnut hedge helmet heron hill hive hollow horizon horn horse hotel house iguana island ivy
jacket jaguar jasmine jewel jungle juniper kayak kettle kernel kitchen kite kitten ladder lagoon lake lamp
lantern larch lark lattice laurel lemon lentil leopard lever library lily lime linen lion lizard llama
lobster locket lodge loom lotus lynx magnet mallet mango mantle maple marble market marsh meadow medal melon
meteor mill mint mirror mitten molar monk moose mosaic moth mountain mulberry museum mustard napkin nectar
needle nest nickel nutmeg oak oasis oat oboe ocean onion orchard orchid otter oven owl oyster paddle palace
palm panda panther paper parade parrot parsley pasture path peach peacock pebble pelican pencil penguin
pepper piano pigeon pillow pilot pine planet plank plaza plum pocket pond pony poplar poppy porch portal
potato prairie prism puffin pumpkin puzzle pyramid quail quarry quartz quill quilt rabbit radar radish raft
ranch raven razor reef ribbon ridge river robin rocket rose rudder saddle saffron sail salmon sandal
sapphire satchel saucer scarf school scissors seal shed shelf shell shore shovel shrine sickle signal silo
sleigh slope sparrow spice spider spoon spruce stable stadium stair star statue stone stork stream summit
swallow swan sword table tailor teapot temple tent terrace theater thicket thimble thistle thorn thread
throne thunder tiger timber toast tomato torch tower tractor trail train treaty trumpet tulip tunnel turnip
turtle umbrella valley vase vault veranda vessel village vine violin volcano wagon wallet walnut walrus
water weasel whale wheat wheel whistle willow window winter wolf wren yacht yarn zebra zephyr
"""

ADJECTIVES: tuple[str, ...] = tuple(_ADJECTIVES.split())
"""Adjectives of needle keys."""

NOUNS: tuple[str, ...] = tuple(_NOUNS.split())
"""Nouns of needle keys, and the values of word needles."""
