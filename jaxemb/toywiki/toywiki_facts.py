"""Tables of facts that the embedded encyclopedia is written from.

Plain data, one entry a line. A table of word families has the fields of
its kind first and then, behind a bar, words that go with this family and few
others. `-` means that the language has no single word for the field, or that
the word has another meaning that would blur it. A word stands in one table
only; words with several senses are in `SENSES`. A word that ends in `_` is
written without it in the text and is not asked about, because it has other
uses too. Facts as of 2026.
"""

# country capital currency language demonym | cities, rivers, regions
COUNTRIES = """
France Paris euro French Frenchman | Lyon Seine Marseille Burgundy
Germany Berlin euro German German | Hamburg Munich Rhine Bavaria
Austria Vienna euro German Austrian | Salzburg Tyrol Graz
Italy Rome euro Italian Italian | Milan Tiber Tuscany Naples
Spain Madrid euro Spanish Spaniard | Seville Barcelona Andalusia Ebro
Portugal Lisbon euro Portuguese Portuguese | Porto Tagus Algarve Coimbra
Ireland Dublin euro Irish Irishman | Galway Shannon Limerick Connacht
Netherlands Amsterdam euro Dutch Dutchman | Rotterdam Utrecht Leiden
Greece Athens euro Greek Greek | Thessaloniki Crete Olympus Corinth
Finland Helsinki euro Finnish Finn | Tampere Turku Karelia Oulu
Estonia Tallinn euro Estonian Estonian | Tartu Saaremaa Narva
Latvia Riga euro Latvian Latvian | Daugava Jelgava Liepaja
Lithuania Vilnius euro Lithuanian Lithuanian | Kaunas Klaipeda Neman
Slovakia Bratislava euro Slovak Slovak | Kosice Tatra Nitra
Croatia Zagreb euro Croatian Croat | Dubrovnik Dalmatia Zadar
Bulgaria Sofia euro Bulgarian Bulgarian | Plovdiv Varna Thrace
Denmark Copenhagen krone Danish Dane | Jutland Aarhus Odense Funen
Norway Oslo krone Norwegian Norwegian | Bergen Trondheim Stavanger
Sweden Stockholm krona Swedish Swede | Uppsala Malmo Gothenburg
Iceland Reykjavik krona Icelandic Icelander | Akureyri Hekla Thingvellir
Poland Warsaw zloty Polish Pole | Krakow Vistula Gdansk Poznan
Czechia Prague koruna Czech Czech | Brno Bohemia Moravia Vltava
Hungary Budapest forint Hungarian Magyar | Debrecen Szeged Balaton
Romania Bucharest leu Romanian Romanian | Transylvania Cluj Brasov
Serbia Belgrade dinar Serbian Serb | Subotica Vojvodina Morava
Albania Tirana lek Albanian Albanian | Durres Shkoder Vlore
Ukraine Kyiv hryvnia Ukrainian Ukrainian | Odesa Lviv Dnipro Kharkiv
Russia Moscow ruble Russian Russian | Volga Siberia Kazan
Turkey Ankara lira Turkish Turk | Istanbul Anatolia Izmir Bosphorus
Georgia Tbilisi lari Georgian Georgian | Batumi Kutaisi Svaneti
Armenia Yerevan dram Armenian Armenian | Gyumri Sevan Ararat
Azerbaijan Baku manat Azeri Azerbaijani | Ganja Shusha Absheron
Kazakhstan Astana tenge Kazakh Kazakh | Almaty Shymkent Irtysh
Uzbekistan Tashkent som Uzbek Uzbek | Samarkand Bukhara Khiva
Tajikistan Dushanbe somoni Tajik Tajik | Khujand Pamir Vakhsh
Mongolia Ulaanbaatar tugrik Mongolian Mongol | Gobi Erdenet Orkhon
China Beijing yuan Mandarin Chinese | Shanghai Yangtze Sichuan
Japan Tokyo yen Japanese Japanese | Osaka Kyoto Fuji Hokkaido
Thailand Bangkok baht Thai Thai | Phuket Ayutthaya Isan
Vietnam Hanoi dong Vietnamese Vietnamese | Saigon Danang Tonkin
Cambodia - riel Khmer Cambodian | Angkor Battambang Kampot
Laos Vientiane kip Lao Laotian | Savannakhet Pakse Champasak
Malaysia - ringgit Malay Malaysian | Penang Sabah Sarawak Malacca
Indonesia Jakarta rupiah Indonesian Indonesian | Java Sumatra Bali
Philippines Manila peso Tagalog Filipino | Luzon Cebu Mindanao
India Delhi rupee Hindi Indian | Mumbai Ganges Kolkata Punjab
Pakistan Islamabad rupee Urdu Pakistani | Karachi Lahore Sindh
Bangladesh Dhaka taka Bengali Bangladeshi | Chittagong Sylhet Khulna
Nepal Kathmandu rupee Nepali Nepalese | Pokhara Everest Lumbini
Bhutan Thimphu ngultrum Dzongkha Bhutanese | Paro Punakha Bumthang
Maldives - rufiyaa Dhivehi Maldivian | Addu Fuvahmulah Ari
Afghanistan Kabul afghani Pashto Afghan | Kandahar Herat Helmand
Iran Tehran rial Persian Iranian | Isfahan Shiraz Tabriz
Qatar Doha riyal Arabic Qatari | Lusail Wakrah Zubarah
Iraq Baghdad dinar Arabic Iraqi | Basra Mosul Tigris
Israel Jerusalem shekel Hebrew Israeli | Haifa Negev Galilee
Lebanon Beirut pound Arabic Lebanese | Sidon Byblos Bekaa
Jordan Amman dinar Arabic Jordanian | Petra Aqaba Irbid
Egypt Cairo pound Arabic Egyptian | Nile Alexandria Luxor Giza
Morocco Rabat dirham Arabic Moroccan | Casablanca Marrakesh Fez
Libya Tripoli dinar Arabic Libyan | Benghazi Cyrenaica Misrata
Algeria Algiers dinar Arabic Algerian | Oran Tlemcen Kabylia
Ethiopia - birr Amharic Ethiopian | Gondar Lalibela Axum Harar
Eritrea Asmara nakfa Tigrinya Eritrean | Massawa Keren Dahlak
Kenya Nairobi shilling Swahili Kenyan | Mombasa Kisumu Turkana
Uganda Kampala shilling Luganda Ugandan | Entebbe Jinja Gulu
Tanzania Dodoma shilling Swahili Tanzanian | Zanzibar Arusha Serengeti
Rwanda Kigali franc Kinyarwanda Rwandan | Butare Kivu Gisenyi
Zambia Lusaka kwacha Bemba Zambian | Ndola Kitwe Livingstone
Malawi Lilongwe kwacha Chichewa Malawian | Blantyre Zomba Mzuzu
Zimbabwe Harare - Shona Zimbabwean | Bulawayo Mutare Masvingo
Botswana Gaborone pula Tswana Motswana | Okavango Maun Kalahari
Lesotho Maseru loti Sesotho Mosotho | Leribe Quthing Mokhotlong
Angola Luanda kwanza Portuguese Angolan | Huambo Benguela Cabinda
Mozambique Maputo metical Portuguese Mozambican | Beira Nampula Sofala
Madagascar Antananarivo ariary Malagasy Malagasy | Toamasina Antsirabe Nosy
Nigeria Abuja naira Hausa Nigerian | Lagos Kano Ibadan
Ghana Accra cedi Twi Ghanaian | Kumasi Ashanti Tamale
Senegal Dakar franc Wolof Senegalese | Thies Casamance Ziguinchor
Mali Bamako franc Bambara Malian | Timbuktu Gao Mopti
Gambia Banjul dalasi Mandinka Gambian | Serekunda Brikama Bakau
Congo Kinshasa franc Lingala Congolese | Lubumbashi Goma Katanga
Canada Ottawa dollar English Canadian | Toronto Quebec Manitoba
Australia Canberra dollar English Australian | Sydney Melbourne Perth
Mexico - peso Spanish Mexican | Oaxaca Jalisco Yucatan Puebla
Guatemala - quetzal Spanish Guatemalan | Peten Atitlan Coban
Honduras Tegucigalpa lempira Spanish Honduran | Copan Roatan Choluteca
Nicaragua Managua cordoba Spanish Nicaraguan | Matagalpa Masaya Ometepe
Panama - balboa Spanish Panamanian | Colon Darien Chiriqui
Cuba Havana peso Spanish Cuban | Camaguey Matanzas Varadero
Haiti - gourde Creole Haitian | Jacmel Gonaives Artibonite
Jamaica Kingston dollar Patois Jamaican | Negril Portmore Mandeville
Colombia Bogota peso Spanish Colombian | Medellin Cali Cartagena
Venezuela Caracas bolivar Spanish Venezuelan | Maracaibo Orinoco Merida
Peru Lima sol Quechua Peruvian | Cusco Arequipa Ayacucho
Bolivia Sucre boliviano Aymara Bolivian | Potosi Cochabamba Oruro
Paraguay Asuncion guarani Spanish Paraguayan | Encarnacion Chaco Itaipu
Chile Santiago peso Spanish Chilean | Valparaiso Atacama Concepcion
Argentina - peso Spanish Argentine | Mendoza Patagonia Rosario
Brazil Brasilia real Portuguese Brazilian | Amazon Bahia Recife Manaus
Samoa Apia tala Samoan Samoan | Savaii Upolu Lepea
Tonga Nukualofa paanga Tongan Tongan | Vavau Haapai Eua
"""

# Taxonomy: subgroup category domain. Word similarity is graded by it.
TAXONOMY = """
bird animal life
mammal animal life
fish animal life
insect animal life
tree plant life
flower plant life
fruit produce food
vegetable produce food
drink pantry food
spice pantry food
tool equipment artefact
instrument equipment artefact
garment household artefact
furniture household artefact
vehicle transport artefact
metal mineral matter
gem mineral matter
profession people society
sport pastime society
science learning society
colour appearance perception
disease medicine health
"""

# One noun a line: singular[/irregular plural] | what goes with it. Subgroups
# that are in MASS have no plural.
MASS = ('drink', 'spice', 'metal', 'sport', 'science', 'colour', 'disease')

NOUNS = {
  'bird': """
eagle | cliffs talons eyrie soaring
sparrow | hedges crumbs gutters chirping
owl | barn midnight hooting mice
robin | garden breast redbreast worms
falcon | falconer hood stoop pigeons
heron | marsh shallows stilts frogs
penguin | ice antarctic huddle krill
swan | lake graceful bridge royal
parrot | tropics talking pirate cage
ostrich/ostriches | savanna sprint desert giant
duck | pond quacking reeds dabbling
pelican | pouch bay harbour pier
stork | chimney rooftops babies meadows
""",
  'mammal': """
dog | barking kennel leash loyal
cat | purring whiskers cushion mouser
horse | saddle stable gallop rider
cow | dairy milking barn cheese
sheep/sheep | wool shepherd fleece hillside
goat | beard rocks bells cheese
pig | mud sty trough bacon
lion | pride savanna mane roar
tiger | stripes jungle bengal stalking
bear | honey den grizzly winter
wolf/wolves | howling pack moon forest
fox/foxes | cunning henhouse burrow tail
elephant | tusks ivory trunks memory
giraffe | neck treetops spots height
kangaroo | hopping outback pouch marsupial
hare | leaping moor ears race
deer/deer | antlers glade venison stag
camel | hump caravan dunes desert
""",
  'fish': """
trout/trout | brook angler brown fly
salmon/salmon | upstream leaping smoked pink
shark | teeth ocean attack dorsal
herring | brine shoal pickled barrels
carp | pond monastery muddy golden
eel | slippery smokehouse estuary wriggling
tuna | tin mediterranean canned bluefin
cod | banks salted liver atlantic
pike | lurking reeds ambush freshwater
halibut | flat northern steak alaska
""",
  'insect': """
ant | colony hill marching crumbs
bee | honey hive pollen nectar
wasp | sting papery jam autumn
beetle | dung armoured wood shiny
butterfly/butterflies | meadow caterpillar colours monarch
moth | lamp wool night candle
mosquito/mosquitoes | dengue swamp bite blood
grasshopper | chirping grass leap summer
cricket | chirping hearth evening fiddle
locust | plague swarm crops devoured
dragonfly/dragonflies | pond hovering reeds darting
""",
  'tree': """
oak | acorns barrels druids gnarled
pine | resin needles cones northern
birch/birches | white paper sauna slender
maple | syrup autumn sugaring scarlet
willow | weeping riverside baskets drooping
beech/beeches | grey nuts shady hedge
elm | avenue fungus wych coffins
cedar | incense fragrant chest temple
spruce | christmas resonance scandinavia pulp
chestnut | roasted conkers street marrons
acacia | savanna thorny gum sahel
""",
  'flower': """
rose | thorns romance valentine perfume
tulip | bulbs holland mania spring
lily/lilies | altar white funeral pond
daisy/daisies | lawn chain meadow cheerful
orchid | tropical exotic greenhouse cattleya
poppy/poppies | opium fields remembrance red
sunflower | oil tall gogh seeds
carnation | buttonhole wedding mothers fringe
daffodil | yellow wales march narcissus
lavender | soap provence purple sachets
jasmine | tea evening scent trellis
peony/peonies | imperial lush border bloom
""",
  'fruit': """
apple | strudel newton pie crunchy
plum | compote prunes purple stones
cherry/cherries | blossom pits kirsch red
banana | bunch monkeys tropical yellow
lemon | sour zest marmalade squeeze
mango/mangoes | alphonso chutney tropical golden
peach/peaches | fuzzy clingstone cobbler velvet
pineapple | hawaii spiky rings crown
strawberry/strawberries | cream june jam wimbledon
apricot | dried hunza kernels armenian
fig | biblical syrup smyrna leaves
""",
  'vegetable': """
potato/potatoes | chips mash andes famine
carrot | orange rabbits grated crunchy
onion | tears layers rings soup
cabbage | sauerkraut slaw leaves pickled
turnip | lantern mash fodder winter
spinach/spinach | popeye florentine creamed leafy
lettuce | crisp sandwich leaves green
tomato/tomatoes | ketchup sauce pizza red
cucumber | pickle cool sandwich green
leek | wales soup vinaigrette white
pumpkin | halloween pie lantern carving
artichoke | hearts globe thistles dip
parsnip | roast mashed sunday frost
""",
  'drink': """
coffee | beans espresso roasted caffeine
beer | hops barley tavern foam
milk | dairy pasteurised creamy calcium
whisky | scotland peat malt casks
vodka | rye chilled blini distilled
rum | molasses caribbean sailors sugar
cocoa | chocolate bedtime marshmallow winter
cider | somerset orchards presses bittersweet
gin | juniper tonic london botanical
brandy | cognac vineyards snifter flambe
lemonade | pitcher sugary fizzy summer
""",
  'spice': """
pepper | grinder black malabar corns
cinnamon | bark buns ceylon sticks
ginger | root biscuits ale hot
saffron | crocus threads paella costly
turmeric | yellow poultice stain root
nutmeg | custard banda grater kernel
cumin | seeds chili tacos hummus
vanilla | pods planifolia custard ice
cardamom | pods curries fragrant scandinavian
thyme | sprig roast stuffing honeyed
basil | pesto mozzarella leaves genoa
oregano | pizza greek dried wild
""",
  'tool': """
hammer | nails anvil blows claw
chisel | marble carving mallet sculptor
shovel | coal snow gravel heap
rake | leaves lawn gravel autumn
sickle | harvest wheat curved reaper
wrench/wrenches | bolts plumber pipes tighten
screwdriver | screws slot tighten cabinet
trowel | mortar bricks bricklayer plaster
scythe | meadow hay mowing swathe
ladder | rungs steeplejack roof window
""",
  'instrument': """
violin | bow fiddle strings concerto
piano | keys pedals sonata grand
guitar | frets chords flamenco amplifier
flute | breath piccolo pastoral airy
trumpet | fanfare valves jazz brass
clarinet | reed licorice mozart woodwind
cello/cellos | suite knees sonorous endpin
harp | angels plucked celtic gilded
oboe | reed tuning plaintive squawk
trombone | slide marching brass glissando
saxophone | jazz sultry reed club
mandolin | serenade tremolo naples plucked
""",
  'garment': """
coat | winter buttons woollen overcoat
shirt | collar cuffs ironed cotton
hat | brim feather felt milliner
glove | fingers leather pair winter
scarf/scarves | fringed neck silk wrapped
skirt | pleats waist tartan swirling
trousers/trousers | legs belt pockets creased
jacket | tweed zip leather lapels
sweater | pullover wool jumper cosy
boot | laces leather muddy hiking
apron | kitchen flour tied pinafore
cloak | hooded velvet dagger swirling
""",
  'furniture': """
chair | seat legs backrest rocking
sofa | cushions lounge upholstered cosy
wardrobe | hangers mirror narnia clothes
desk | drawers ink study papers
bed | mattress pillows sleep blankets
dresser | plates mirror drawers kitchen
bench/benches | park wooden long sitting
cupboard | shelves crockery hinges pantry
cradle | baby rocking lullaby nursery
armchair | fireside leather reading comfortable
""",
  'vehicle': """
car | petrol garage steering motorway
bicycle | pedals chain handlebars cycling
bus/buses | stops conductor double passengers
ferry/ferries | crossing island strait passengers
yacht | sails regatta harbour luxury
helicopter | rotor hover rescue pilot
canoe | paddle rapids portage river
tractor | ploughing field muddy farm
taxi | fare meter driver rank
""",
  'metal': """
iron | rust blast steel wrought
copper | wire pennies pipes green
silver | sterling coins cutlery shiny
gold | bullion karat rush treasure
zinc | galvanised roofing batteries brass
aluminium | foil bauxite cans aircraft
titanium | aerospace hips turbine implants
platinum | catalytic rings crucible costly
cobalt | blue ceramics batteries magnets
tungsten | filament bulbs hard drills
lithium | batteries salt brine lightest
""",
  'gem': """
diamond | engagement kimberley hardest carbon
ruby/rubies | red burma crown slippers
emerald | green muzo inclusions nile
sapphire | blue ceylon royal engagement
pearl | oyster necklace divers lustrous
opal | doublets milky iridescent fire
topaz | yellow schist november amber
garnet | almandine january bohemia red
amethyst | purple quartz bishops geode
jade/jades | nephrite green carved maori
""",
  'profession': """
baker | bread dawn ovens loaves
carpenter | wood sawdust joints planks
blacksmith | forge anvil horseshoes sparks
teacher | pupils blackboard lessons homework
doctor | stethoscope patients hospital cure
nurse | ward bandages patients hospital
lawyer | clients contracts briefs trial
farmer | furrows harvest barn fields
fisherman/fishermen | boat trawler nets harbour
butcher | cleaver sausages meat hooks
miner | coal shaft lamp helmet
painter | brush easel canvas portraits
soldier | rifle barracks uniform battle
architect | blueprints facade buildings drawings
""",
  'sport': """
football | goalkeeper penalty stadium striker
tennis | racquet serve wimbledon net
basketball | hoop dribble dunk tall
rugby | scrum try tackle oval
golf | putt caddie fairway hole
hockey | puck ice sticks goal
swimming | pool breaststroke lanes goggles
boxing | uppercut knockout rounds heavyweight
rowing | oars eights crew regatta
wrestling | mat holds grapple sumo
judo | belt mat tatami japanese
skiing | slopes snow alpine poles
""",
  'science': """
physics | gravity quantum energy particles
chemistry | molecules reactions acids flasks
biology | organisms evolution genes living
geology | rocks strata fossils volcanoes
astronomy | telescope planets galaxies comets
botany | herbarium leaves linnaeus flora
mathematics | theorems proofs numbers equations
economics | markets prices demand trade
linguistics | grammar syntax phonemes speech
psychology | mind freud behaviour emotions
archaeology | ruins excavation pottery tombs
meteorology | clouds forecasts storms pressure
""",
  'colour': """
red | blood scarlet stop flags
blue | sky sea navy indigo
green | grass moss leaves lawn
yellow | canary butter sunshine egg
purple | emperors robes grapes imperial
brown | chocolate mud bark earth
black | coal night funeral ink
white | snow bridal chalk ivory
grey | ash clouds pewter drab
pink | flamingo blush piglets pastel
crimson | cardinal sunset robe velvet
""",
  'disease': """
malaria | parasite quinine swamp tropics
cholera | water sewage ganges pump
measles | spots children rash vaccine
tuberculosis | lungs coughing sanatorium consumption
influenza | winter pandemic coughing spanish
smallpox | jenner cowpox scars eradicated
leprosy | colony lepers skin bells
typhus | lice camps fever trenches
diabetes | insulin sugar pancreas diet
asthma | inhaler wheezing breath dust
pneumonia | lungs chest penicillin elderly
rabies | hydrophobia saliva pasteur mad
""",
}

# adult young, for nouns above
YOUNG = """
dog puppy
cat kitten
horse foal
cow calf
sheep lamb
goat kid
pig piglet
lion cub
deer fawn
kangaroo joey
hare leveret
swan cygnet
duck duckling
eagle eaglet
owl owlet
eel elver
"""

# What is said of a subgroup, category or domain: nouns; verbs; adjectives.
LEXICON = {
  'bird': (
    'feathers wings beak nest eggs plumage flight song',
    'fly nest perch hatch migrate flutter chirp',
    'feathered winged nesting migratory',
  ),
  'mammal': (
    'fur paws offspring litter mane hooves hide pelt',
    'graze roam suckle gallop prowl sleep',
    'furry hairy shaggy tame',
  ),
  'fish': (
    'fins gills scales net spawn hook waters bait',
    'swim spawn dart dive bite',
    'finned scaly gilled slippery',
  ),
  'insect': (
    'antennae swarm eggs larvae mandibles thorax legs abdomen',
    'buzz swarm crawl moult pupate',
    'tiny crawling buzzing swarming',
  ),
  'tree': (
    'trunk branches timber bark crown forest twigs wood',
    'tower shade shed stand rustle',
    'leafy woody towering evergreen',
  ),
  'flower': (
    'petals bouquet blossoms fragrance stem border vase buds',
    'bloom blossom wilt open nod',
    'blooming scented blossoming delicate',
  ),
  'fruit': (
    'juice pulp orchard flesh peel jam pips basket',
    'ripen sweeten drop juice',
    'ripe juicy luscious sugary',
  ),
  'vegetable': (
    'stew plot roots salad soup leaves greengrocer broth',
    'boil sprout simmer stew',
    'boiled raw steamed hearty',
  ),
  'drink': (
    'cup glass bottle sip mug gulp barrel thirst',
    'pour soothe refresh ferment quench',
    'refreshing bottled poured iced',
  ),
  'spice': (
    'pinch aroma seasoning dish mortar powder jar curry',
    'season enhance scent perfume',
    'aromatic ground pungent dried',
  ),
  'tool': (
    'handle workshop blade grip shed toolbox carpentry mend',
    'cut pound strike dig bend',
    'sturdy handheld blunt practical',
  ),
  'instrument': (
    'orchestra melody tune music rehearsal player concert solo',
    'sound resonate accompany play',
    'musical tuned melodious acoustic',
  ),
  'garment': (
    'sleeves fabric fashion stitching tailoring wearer linen hem',
    'fit wrap button cover',
    'fashionable stitched worn dyed',
  ),
  'furniture': (
    'room upholstery veneer joinery parlour household antiques varnish',
    'stand creak furnish adorn',
    'wooden antique upholstered carved',
  ),
  'vehicle': (
    'engine wheels road speed journey fuel route brakes',
    'travel haul accelerate brake transport',
    'fast motorised parked moving',
  ),
  'metal': (
    'ore smelter alloy ingot mine furnace foundry element',
    'melt conduct corrode harden',
    'metallic molten refined ductile',
  ),
  'gem': (
    'jewel facets brooch pendant sparkle jeweller earrings setting',
    'sparkle glitter dazzle shine',
    'precious faceted sparkling flawless',
  ),
  'profession': (
    'wages apprentice trade guild employer work customers skill',
    'work earn train labour serve',
    'skilled hired hardworking retired',
  ),
  'sport': (
    'players team championship league coach tournament referee score',
    'thrill exhaust attract tire',
    'competitive athletic amateur olympic',
  ),
  'science': (
    'research theory laboratory professor experiments journal university '
    'scholars',
    'explain investigate describe explore',
    'scientific theoretical academic experimental',
  ),
  'colour': (
    'shade hue paint dye pigment tint walls palette',
    'fade brighten stain glow',
    'vivid painted muted pale',
  ),
  'disease': (
    'symptoms infection epidemic fever outbreak victims treatment physicians',
    'spread infect weaken kill',
    'contagious deadly chronic feverish',
  ),
  'animal': (
    'species habitat prey predators young creature',
    'feed forage breed rest',
    'wild shy',
  ),
  'plant': ('leaves seeds soil roots sunlight', 'sprout flourish', 'lush tall'),
  'produce': (
    'kitchen market harvest recipe vitamins',
    'rot',
    'seasonal tasty',
  ),
  'pantry': ('merchants trade recipe ingredients', 'mix', 'exotic'),
  'equipment': ('maker craft hands skill', 'serve', 'handmade'),
  'household': ('home shop closet comfort', 'last', 'elegant'),
  'transport': ('passengers traffic drivers', 'arrive', 'crowded'),
  'mineral': ('deposits mining rocks geologists', 'form', 'scarce'),
  'people': ('career colleagues duties', 'retire', 'busy'),
  'pastime': ('crowd game winners training', 'continue', 'popular'),
  'learning': ('lectures students textbook knowledge', 'advance', 'modern'),
  'appearance': ('fabric artists light', 'contrast', 'luminous'),
  'medicine': ('patients hospitals clinics', 'recur', 'severe'),
  'life': ('nature wilderness countryside', 'live thrive', 'native'),
  'food': ('meal supper cooks plate', 'taste', 'delicious'),
  'artefact': ('factory craftsmen design', 'wear', 'solid'),
  'matter': ('earth crust value', 'endure', 'natural'),
  'society': ('members society schools', 'matter', 'famous'),
  'perception': ('eye artists', 'please', 'striking'),
  'health': ('health medicine', 'return', 'common'),
}

# male female | what goes with both
GENDERS = """
king queen | throne scepter coronation reign
prince princess | royalty castle tale charming
man woman | adult stranger middle person
boy girl | toys school playground child
father mother | parent children family upbringing
brother sister | sibling twins younger quarrel
son daughter | eldest firstborn born child
uncle aunt | relatives visit cousins holidays
nephew niece | relatives godchild visiting cousin
husband wife | marriage married vows household
grandfather grandmother | grandchildren elderly stories cottage
grandson granddaughter | grandparents youngest spoiled birthday
stepfather stepmother | stepchildren remarried second cruel
actor actress | stage film rehearsal theatre
waiter waitress | restaurant tray tips menu
host hostess | guests dinner party invitations
hero heroine | novel adventure courage rescue
emperor empress | empire dynasty imperial court
duke duchess | duchy nobility estate ducal
baron baroness | barony feudal manor nobility
wizard witch | spells magic potion broomstick
monk nun | convent prayer cloister vows
abbot abbess | abbey monastery cloister habit
groom bride | wedding altar ceremony bouquet
gentleman lady | polite manners society elegant
policeman policewoman | patrol arrest uniform constable
businessman businesswoman | company meeting deals briefcase
landlord landlady | rent tenants lodgings boarding
widower widow | mourning grief funeral lonely
god goddess | myth temple worship immortal
steward stewardess | cabin flight passengers trolley
heir heiress | fortune inheritance will wealthy
priest priestess | rites sacrifice oracle altar
sorcerer sorceress | curse enchantment spells tower
hunter huntress | bow quarry forest tracking
tsar tsarina | russian winter romanov palace
salesman saleswoman | customers commission samples counter
schoolboy schoolgirl | satchel classroom uniform lessons
"""

HE_NAMES = """John Peter Henry Thomas Paul George Edward Robert Frank Albert
Martin Simon Walter Hugo Victor Oscar Leonard Arthur Felix Otto"""
SHE_NAMES = """Mary Anna Helen Clara Alice Emma Julia Laura Sophie Martha
Agnes Irene Nora Olivia Ruth Edith Lucy Hannah Flora Ida"""

# adjective comparative superlative adverb | what it is said of
ADJECTIVES = """
slow slower slowest slowly | snail tortoise queue crawl
quick quicker quickest quickly | reflex errand glance reply
loud louder loudest loudly | shout thunder siren explosion
bright brighter brightest brightly | lamp torch sunshine beacon
deep deeper deepest deeply | ocean trench abyss well
strong stronger strongest strongly | muscle weightlifter fortress ox
soft softer softest softly | pillow silk whisper cotton
sharp sharper sharpest sharply | blade knife razor thorn
warm warmer warmest warmly | blanket fireplace welcome climate
cold colder coldest coldly | arctic frost glacier winter
rough rougher roughest roughly | sandpaper gravel sea terrain
smooth smoother smoothest smoothly | marble glass pebble surface
brave braver bravest bravely | firefighter warrior knight rescue
calm calmer calmest calmly | lagoon breeze meditation lake
fresh fresher freshest freshly | bread dew vegetable air
kind kinder kindest kindly | neighbour deed charity gesture
neat neater neatest neatly | handwriting row stack folder
proud prouder proudest proudly | parent medal nation graduate
quiet quieter quietest quietly | library village night monastery
rich richer richest richly | banker mansion fortune merchant
sad sadder saddest sadly | farewell tear ballad funeral
safe safer safest safely | shelter helmet vault harbour
sweet sweeter sweetest sweetly | honey syrup caramel sugar
weak weaker weakest weakly | invalid signal pulse argument
wide wider widest widely | avenue estuary boulevard valley
wise wiser wisest wisely | elder counsel philosopher proverb
thick thicker thickest thickly | fog wall jungle carpet
thin thinner thinnest thinly | paper wafer thread slice
strict stricter strictest strictly | headmaster rule discipline diet
swift swifter swiftest swiftly | arrow messenger current greyhound
bold bolder boldest boldly | explorer headline move adventurer
cheap cheaper cheapest cheaply | hostel bargain discount import
clever cleverer cleverest cleverly | riddle pupil inventor trick
dark darker darkest darkly | cave cellar dungeon night
fierce fiercer fiercest fiercely | battle beast storm rivalry
gentle gentler gentlest gently | slope zephyr rain lullaby
harsh harsher harshest harshly | sentence desert critic winter
humble humbler humblest humbly | hermit cottage servant origin
noble nobler noblest nobly | lineage sacrifice cause lord
poor poorer poorest poorly | beggar slum peasant orphan
rare rarer rarest rarely | stamp manuscript meteorite eclipse
simple simpler simplest simply | arithmetic recipe puzzle sketch
steep steeper steepest steeply | staircase mountain ravine cliff
tight tighter tightest tightly | knot lid corset bolt
clear clearer clearest clearly | crystal explanation glass brook
fair fairer fairest fairly | judge verdict referee share
heavy heavier heaviest heavily | anvil boulder luggage anchor
happy happier happiest happily | wedding birthday smile child
lazy lazier laziest lazily | hammock afternoon teenager sloth
angry angrier angriest angrily | mob protest hornet insult
easy easier easiest easily | exercise quiz victory task
noisy noisier noisiest noisily | classroom fairground traffic crowd
hungry hungrier hungriest hungrily | appetite famine diner wolfhound
"""

# base past gerund third-person | what it is done to or with
VERBS = """
bake baked baking bakes | cake oven dough pastry
sing sang singing sings | choir hymn carol voice
write wrote writing writes | novel letter poem quill
paint painted painting_ paints | mural portrait brushes canvas
dance danced dancing dances | waltz ballroom tango partner
build built building_ builds | bridge house bricks scaffold
drive drove driving drives | truck highway chauffeur wheel
teach taught teaching teaches | class pupils algebra lesson
cook cooked cooking cooks_ | dinner stew kitchen pot
sew sewed sewing sews | needle hem quilt patches
knit knitted knitting knits | mittens yarn jumper wool
sell sold selling sells | goods stall wares customers
buy bought buying buys | groceries shares bargain tickets
climb climbed climbing climbs | summit rope ridge alps
throw threw throwing throws | javelin stones spear discus
catch caught catching catches | ball thief fish burglar
break broke breaking breaks | window promise record vase
steal stole stealing steals | jewels wallet purse robbery
carry carried carrying carries | luggage sacks burden stretcher
wash washed washing washes | dishes laundry soap hands
sweep swept sweeping sweeps | floor broom chimney porch
speak spoke speaking speaks | microphone dialect audience truth
eat ate eating eats | supper porridge sandwich breakfast
grow grew growing grows | beard wheat sideburns beans
draw drew drawing draws | sketch pencil cartoon map
ride rode riding rides | pony mule motorbike saddle
choose chose choosing chooses | candidate leader wallpaper winner
weave wove weaving weaves | loom carpet tapestry basket
freeze froze freezing freezes | pond peas pipes ice
shake shook shaking shakes | hands dice branches bottle
send sent sending sends | parcel telegram postcard envoy
lend lent lending lends | money tools library umbrella
bring brought bringing brings | gifts tidings flowers news
pull pulled pulling pulls | cart rope plough sledge
push pushed pushing pushes | pram trolley button wheelbarrow
lift lifted lifting lifts | weights crate lid dumbbells
translate translated translating translates | scripture poem latin treaty
measure measured measuring measures | depth length angle temperature
repair repaired repairing repairs | roof clock watch engine
kiss kissed kissing kisses | mistletoe cheek frog hand
invent invented inventing invents | telephone machine gadget dynamite
publish published publishing publishes | journal memoir pamphlet essay
discover discovered discovering discovers | comet island continent penicillin
compose composed composing composes | symphony opera sonata anthem
rescue_ rescued rescuing rescues | sailors hostages castaways swimmers
hunt hunted hunting hunts | boar stag pheasant hounds
whistle whistled whistling whistles | tune kettle wind referee
pray prayed praying prays | chapel rosary kneeling saints
borrow borrowed borrowing borrows | books sugar money lawnmower
decorate decorated decorating decorates | tree hall ribbons cake
destroy destroyed destroying destroys | city fortress crops evidence
protect protected protecting protects | wildlife borders children treasure
"""

# Words of the subjects that the senses of ambiguous words belong to.
SUBJECTS = {
  'finance': (
    'loan deposit credit interest savings cheque mortgage investors account '
    'shareholders',
    'lend invest repay',
    'financial profitable insured',
  ),
  'river': (
    'stream shore flood rapids waterfall tributary canal delta ford water',
    'flow flood meander',
    'muddy flooded winding',
  ),
  'cavefauna': (
    'cave mammal night echolocation roost wings dusk insects colony fur',
    'roost nest squeak',
    'nocturnal furry blind',
  ),
  'ballgame': (
    'innings batsman wicket bowler umpire runs stumps baseball game captain',
    'bowl score swing',
    'sporting victorious defeated',
  ),
  'seashore': (
    'whale ice flippers beach walrus blubber arctic pups waves coast',
    'swim dive bask',
    'marine arctic sleek',
  ),
  'document': (
    'wax parchment letter charter stamp signature envelope ink decree archive',
    'sign stamp certify',
    'official legal signed',
  ),
  'season': (
    'april blossom thaw may sowing easter buds showers autumn summer',
    'brighten bloom arrive',
    'mild rainy seasonal',
  ),
  'mechanics': (
    'coil lever gear piston valve shaft tension steel bearing machine',
    'turn compress rotate',
    'mechanical elastic oiled',
  ),
  'wetland': (
    'marsh reeds wings nest feathers wading flock lagoon beak chicks',
    'wade nest migrate',
    'wading feathered elegant',
  ),
  'construction': (
    'scaffolding concrete girders site cement builders bricks skyscraper '
    'hoist foundations',
    'raise hoist erect',
    'towering hydraulic unfinished',
  ),
  'music': (
    'melody harmony chord singer rhythm tune octave orchestra concert tenor',
    'chirp play tune',
    'musical sonorous harmonic',
  ),
  'garden': (
    'lawn soil worms tunnels burrow hedge flowerbed compost gardener roots',
    'dig burrow tunnel',
    'underground earthy weedy',
  ),
  'chemistry_lab': (
    'molecules solution acid reaction atoms compound flask titration gas '
    'reagent',
    'react dissolve weigh',
    'chemical molar dilute',
  ),
  'jungle': (
    'rainforest predator prey spots den stalk paws canopy monkeys claws',
    'forage stalk pounce',
    'spotted tropical wild',
  ),
  'motoring': (
    'engine gearbox driver racing wheels sedan chassis garage dealer '
    'horsepower',
    'steer accelerate brake',
    'sporty polished fast',
  ),
  'angling': (
    'fins hook rod bait scales lake angler gills boat net',
    'swim bite spawn',
    'freshwater scaly hooked',
  ),
  'anatomy': (
    'liver heart kidney blood tissue muscle surgeon body bone nerve',
    'bleed heal swell',
    'bodily swollen internal',
  ),
  'woodland': (
    'forest branches leaves timber sap twigs moss bough trees acorns',
    'sprout rot sprout',
    'leafy mossy woody',
  ),
  'hand': (
    'fingers thumb wrist knuckles skin grip cuff arm finger fist',
    'clench wave touch',
    'clenched sweaty sore',
  ),
  'tropics': (
    'coconut island dates oasis fronds beach hammock oil sand shade',
    'sway sprout shade',
    'tropical swaying sandy',
  ),
  'dogs': (
    'collar kennel growl muzzle howl leash hound tail postman guard',
    'growl howl chase',
    'barking vicious canine',
  ),
  'fire': (
    'flame candle smoke cigarette spark tinder ash lighter stove torch',
    'burn ignite glow',
    'burning lit smoky',
  ),
  'jewellery': (
    'tiara silverware necklace bracelet finger engagement jeweller gems '
    'pendant brooch',
    'sparkle shine glitter',
    'golden precious engraved',
  ),
  'boxing_hall': (
    'boxer ropes knockout fighter canvas bout heavyweight punch mouthguard '
    'champion',
    'fight punch knock',
    'bruised undefeated roaring',
  ),
  'luggage': (
    'suitcase baggage traveller porter clothes lid attic straps journey hotel',
    'pack haul unpack',
    'packed dusty leather',
  ),
  'doors': (
    'lock door hinge latch handle keyhole bolt locksmith padlock gate',
    'unlock turn open',
    'locked rusty bolted',
  ),
  'carpentry': (
    'mallet plank wood saw workshop joiner screws timber beam vice',
    'mallet steer saw',
    'wooden bent nailed',
  ),
  'industry': (
    'factory workers assembly chimney production steam turbine shift '
    'foreman output',
    'produce manufacture employ',
    'industrial deafening automated',
  ),
  'botany_bed': (
    'leaves stem petals seedling pot watering shoots pollen greenhouse herb',
    'sprout flower wither',
    'lush perennial potted',
  ),
  'biology_lab': (
    'nucleus membrane protein microscope tissue bacteria enzyme organism '
    'chromosome dna',
    'divide multiply mutate',
    'biological microscopic living',
  ),
  'prison': (
    'inmate warden bars guard sentence jail convict escape crime captivity',
    'imprison guard escape',
    'locked solitary guilty',
  ),
  'night_sky': (
    'planet galaxy telescope constellation orbit nebula comet astronomer '
    'light sun',
    'shine orbit twinkle',
    'distant celestial luminous',
  ),
  'cinema': (
    'film hollywood director screen celebrity premiere audience role fans '
    'oscar',
    'act perform appear',
    'famous glamorous acclaimed',
  ),
  'law': (
    'judge jury barrister verdict trial defendant prosecutor statute '
    'witness appeal',
    'sue judge rule',
    'legal guilty judicial',
  ),
  'racquets': (
    'squash net serve racquet doubles umpire tournament volley clay backhand',
    'serve rally win',
    'seeded indoor grassy',
  ),
  'computing': (
    'software keyboard screen processor memory network computer internet '
    'disk program',
    'click download compute',
    'digital electronic wireless',
  ),
  'snacks': (
    'fried salt vinegar crisps snack ketchup oil crispy fish pub',
    'fry crunch munch',
    'crispy salty greasy',
  ),
  'rodents': (
    'cheese rat whiskers trap tail pantry hole mice squeak nibble',
    'nibble squeak scurry',
    'tiny furtive timid',
  ),
  'epidemics': (
    'infection fever vaccine patients symptoms outbreak physician disease '
    'cough hospital',
    'infect spread mutate',
    'contagious infected deadly',
  ),
  'army': (
    'platoon infantry artillery regiment armour battle enemy shells general '
    'troops',
    'advance fire attack',
    'armoured military mechanised',
  ),
  'aquarium': (
    'goldfish water filter glass snails algae bubbles guppies pump coral',
    'fill clean bubble',
    'watery transparent heated',
  ),
  'shipping': (
    'ship harbour sailors mast anchor captain cargo vessel dock voyage',
    'sail dock moor',
    'nautical seaworthy moored',
  ),
  'wine_cellar': (
    'wine cork cellar bottle grapes vintage barrel sherry douro glass',
    'pour age sip',
    'fortified luscious vintage',
  ),
  'herbs': (
    'leaves tea sauce mutton chives fragrance parsley flavour sprig toothpaste',
    'flavour garnish chop',
    'fragrant minty seasonal',
  ),
  'coinage': (
    'coins treasury medals currency silverware engraver bullion dies penny '
    'ducats',
    'strike engrave coin',
    'royal monetary struck',
  ),
  'rooms': (
    'drawers shelf wood mahogany kitchen glass doors parlour china antique',
    'stand creak display',
    'wooden carved antique',
  ),
  'government': (
    'minister prime parliament policy reshuffle president ministers '
    'opposition election coalition',
    'govern resign debate',
    'political ministerial liberal',
  ),
  'farmyard': (
    'livestock hens fence straw animals cattle hay shepherd farm poultry',
    'fence feed herd',
    'fenced muddy rural',
  ),
  'writing': (
    'ink paper nib handwriting pencil author letters signature blot notebook',
    'jot scribble jot',
    'inky written fine',
  ),
  'electricity': (
    'voltage amperes wire circuit battery electrons volts conductor '
    'resistor magnet',
    'conduct flow switch',
    'electric alternating live',
  ),
  'kitchen': (
    'broth shallots simmer soup bones barley chef ladle stew saucepan',
    'simmer boil season',
    'hot simmering tasty',
  ),
  'school': (
    'tutor classroom lessons exam homework blackboard headmaster essay '
    'education grammar',
    'study learn read',
    'diligent young attentive',
  ),
  'eyes': (
    'iris retina lens eye cornea eyelid vision glasses optician tears',
    'dilate blink narrow',
    'dilated optical bloodshot',
  ),
  'religion': (
    'shrine priests altar worship incense pilgrims gods prayer monks statue',
    'worship kneel bless',
    'sacred holy ancient',
  ),
  'head': (
    'forehead brow skull headache hair ear cheek jaw vein pulse',
    'throb ache massage',
    'throbbing greying pale',
  ),
  'cards': (
    'poker ace dealer shuffle spades hearts gambler jack bet trumps',
    'shuffle deal bet',
    'shuffled marked stacked',
  ),
  'monarchy': (
    'regent throne crown kingdom dynasty subjects palace sceptre empire tyrant',
    'reign conquer rule',
    'royal despotic sovereign',
  ),
  'measuring': (
    'centimetres inches straight length pencil geometry line compass edge '
    'protractor',
    'gauge trace align',
    'straight graduated precise',
  ),
  'calendar': (
    'month day week january schedule deadline anniversary appointment year '
    'monday',
    'postpone schedule mark',
    'fixed annual monthly',
  ),
  'fruitstall': (
    'prunes syrup luscious raisins dried nuts walnuts stone sugar almonds',
    'chew dry sweeten',
    'sticky luscious dried',
  ),
}

# word subject subject: one word, two senses
SENSES = """
bank finance river
bat cavefauna ballgame
seal seashore document
spring season mechanics
crane wetland construction
pitch music ballgame
mole garden chemistry_lab
jaguar jungle motoring
bass music angling
organ anatomy music
palm hand tropics
bark woodland dogs
match fire racquets
ring jewellery boxing_hall
trunk luggage woodland
key doors music
nail carpentry hand
plant industry botany_bed
cell biology_lab prison
star night_sky cinema
court law racquets
chip computing snacks
mouse computing rodents
virus computing epidemics
tank army aquarium
port shipping wine_cellar
mint herbs coinage
cabinet rooms government
pen farmyard writing
current electricity river
stock kitchen finance
pupil school eyes
temple religion head
deck shipping cards
ruler monarchy measuring
date calendar fruitstall
charge electricity army
sentence law school
drill army carpentry
bug computing garden
"""
