"""Plain words for needles: keys are an adjective and a noun, word values are nouns."""

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
